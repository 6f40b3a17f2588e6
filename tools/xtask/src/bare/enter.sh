# Runs the command $3 in the clone, on the machine in the folder $1 and a new layer on it in the folder $2. A kernel that mounts no
# overlay there gets a copy. All mounts end with the process, which has a namespace of its own.
set -eu
debian=$1 fresh=$2 command=$3
root=$fresh/root
mkdir -p "$fresh/upper" "$fresh/work" "$root"
mount -t overlay overlay -o "lowerdir=$debian,upperdir=$fresh/upper,workdir=$fresh/work" "$root" 2>/dev/null ||
    cp --archive --reflink=auto "$debian/." "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
exec chroot "$root" bash -c "PATH=~/.cargo/bin:\$PATH; cd ~/tlbkit && $command"
