# Runs the command $3 in the clone, on the machine in the folder $1 and a new layer on it in the folder $2. A kernel that mounts no
# overlay there gets a copy. All mounts end with the process, which has a namespace of its own.
set -eu
debian=$1 fresh=$2 command=$3
mkdir -p "$fresh/upper" "$fresh/work" "$fresh/root"
mount -t overlay overlay -o "lowerdir=$debian,upperdir=$fresh/upper,workdir=$fresh/work" "$fresh/root" 2>/dev/null ||
    cp --archive --reflink=auto "$debian/." "$fresh/root"
mount -t proc proc "$fresh/root/proc"
mount --rbind /sys "$fresh/root/sys"
mount --rbind /dev "$fresh/root/dev"
exec chroot "$fresh/root" bash -c "cd /root/tlbkit && $command"
