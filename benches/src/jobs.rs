//! The jobs: what each is called and what it measures, in the order of the reports.
//!
//! On a subject with four CPUs one runs the address space, and no change interrupts another: what the jobs show is what a kernel for
//! several CPUs pays where it needs no shootdown.
//!
//! The shootdowns of N CPUs are for N = 2 and as many as there are, at most 8.
//!
//! The jobs of N threads are for N = 1, 2 and as many as there are CPUs (an `AddressSpace` has four). The time is that of all threads
//! together, divided by the number of all operations, so with a ratio of 2.0 two threads do twice the work of one. Frames of pages cost
//! nothing here; frames of nodes come from one list with a lock. An `AddressSpace` that several threads run asks all of them to flush
//! what it unmaps, and waits for their replies: a thread replies at the end of its call, or while it waits. That shows how calls
//! hold each other up, and not what an interrupt takes; nobody asks for the flushes of the tables alone and of the peers. A peer
//! keeps its empty nodes, unless its name says otherwise, so only the first pass of first touches makes them.

/// Each job's name, and what one of its operations is.
pub const JOBS: &[(&str, &str)] = &[
    ("lookup dense", "a hit in 8192 neighbouring pages, each lookup independent of the others"),
    ("lookup sparse", "a hit in 8192 single pages anywhere"),
    ("lookup sparse 64", "a hit in 64 single pages anywhere"),
    ("lookup sparse 1024", "a hit in 1024 single pages anywhere"),
    ("lookup file", "a hit in 8192 pages in runs as long as files are"),
    ("lookup cc1", "a hit in the pages that GCC's C compiler touched"),
    ("lookup sqlite", "a hit in the pages that SQLite touched"),
    ("lookup perl", "a hit in the pages that Perl touched"),
    ("lookup near miss", "a lookup of an unmapped page whose neighbours are mapped"),
    (
        "lookup far miss",
        "a lookup of one of 65536 pages anywhere, far from 8192 neighbouring pages that are mapped",
    ),
    ("lookup far miss, sparse", "a lookup of one of 65536 pages anywhere, with 8192 others mapped"),
    ("lookup chain dense", "a hit whose address is the result of the one before, 8192 neighbouring pages"),
    ("lookup chain sparse", "the same, 8192 single pages anywhere"),
    ("lookup cold dense", "the same, 8192 neighbouring pages, after the caches held something else"),
    ("lookup cold sparse", "the same, 8192 single pages anywhere, after the caches held something else"),
    ("lookup cold file", "the same, runs as long as files are, after the caches held something else"),
    (
        "lookup behind an STLB",
        "a lookup in a software TLB, and in the table where that misses, about half of the time",
    ),
    ("map page", "map one page in a node that has others; its neighbours were mapped just before"),
    ("unmap page", "unmap one page of a node that keeps others"),
    ("unmap page, untouched", "the same, of a page that hardware may still mark accessed and dirty"),
    ("protect page", "make one page writable or read-only (PROT1)"),
    ("protect page, untouched", "the same, of a page that hardware may still mark accessed and dirty"),
    (
        "replace page",
        "map a mapped page to another frame; an unmap and a map where the subject has nothing else",
    ),
    (
        "map page, cold",
        "map one page beside another, far from the pages of the operations before; cold caches",
    ),
    ("unmap page, cold", "unmap that page"),
    ("protect page, cold", "make that page writable or read-only"),
    ("replace page, cold", "map that page to another frame"),
    ("map 128", "a page of a run of 128 that are mapped by one call"),
    ("unmap 128", "a page of that run, unmapped by one call"),
    ("protect 128", "a page of that run, made writable or read-only by one call (PROTN)"),
    (
        "map from empty, dense",
        "map one of 4096 neighbouring pages, one by one, in a table that is empty at first",
    ),
    ("unmap all, dense", "unmap one of these pages, one by one, until the table is empty"),
    ("map from empty, sparse", "map one of 1024 single pages anywhere, in a table that is empty at first"),
    ("unmap all, sparse", "unmap one of these pages, one by one, until the table is empty"),
    ("unmap freeing", "unmap the only page of a node, which goes back to its storage"),
    (
        "fault cc1",
        "look a page up and map it: the first touches of GCC's C compiler, in their order, from an empty table",
    ),
    ("fault sqlite", "the same, of SQLite"),
    ("fault perl", "the same, of Perl"),
    ("fork protect", "a page made read-only: 2048 pages in runs as long as files are, a call for each run"),
    (
        "fork replace",
        "a page of these replaced by a writable one, in random order: the copies on write after a fork",
    ),
    ("fork", "a page of a copy of these 2048 pages, made by one call"),
    (
        "fault, N threads, disjoint",
        "look a page up and map it, each thread in nodes of its own, which exist; ratio of throughput to one thread",
    ),
    (
        "fault, N threads, shared",
        "the same, by turns every page of one node of 2 MiB, which exists; ratio of throughput to one thread",
    ),
    (
        "fault, N threads, first touches",
        "the same, by turns 16 pages of one region without nodes; ratio of throughput to one thread",
    ),
    (
        "mmap and munmap, N threads",
        "map 16 pages by one call and unmap 16 by another, each thread in a node of its own; ratio of throughput to one thread",
    ),
    ("destroy", "create a table, map one page, unmap it, destroy the table"),
    (
        "destroy file",
        "a page of 2048 in runs as long as files are, unmapped run by run before the table is destroyed",
    ),
    ("iterate dense", "visit a page of 8192 neighbouring ones"),
    ("iterate sparse", "visit a page of 8192 single ones anywhere"),
    ("promote 512", "make one leaf of 512 pages"),
    ("split 512", "make 512 pages of one leaf"),
    ("STLB hit dense", "a hit of a software TLB in 8192 neighbouring pages, beside the walk of `x86_64`"),
    ("STLB chain dense", "a hit whose address is the result of the one before"),
    ("STLB hit sparse", "a hit in 8192 single pages anywhere"),
    ("STLB chain sparse", "a hit whose address is the result of the one before"),
    ("STLB near chain", "the same in 512 entries, beside a load from the first-level cache"),
    ("STLB fill", "enter a page in a software TLB"),
    ("STLB invalidate page", "remove a page from a software TLB"),
    (
        "PTLB record",
        "copy an entry from the TLB at a message, for a prefetch TLB alone and for one with the software TLB",
    ),
    ("PTLB prefetch", "find the entry at the next message, which the TLB lacks"),
    ("superpage bookkeeping", "what a promotion policy does at a TLB miss, if no promotion is granted"),
    (
        "superpage promotions",
        "the same, with every promotion granted, in loops over more pages than a TLB holds; copies cost nothing",
    ),
    ("publish", "post a request for another CPU, beside an atomic addition"),
    ("empty poll", "see that no CPU has asked for anything, beside a load"),
    ("unshared", "a shootdown of a page that no other CPU can hold, beside an atomic addition"),
    (
        "shootdown round trip",
        "ask a CPU that polls and wait for its reply: by a mailbox, by two words, by a whole shootdown",
    ),
    (
        "shootdown, N CPUs",
        "change a page that N CPUs hold until its frame is free, by each of the ten algorithms; the other CPUs poll",
    ),
    ("dependent load", "a load whose address is the result of the one before"),
    ("cache line there and back", "a cache line goes to another CPU and comes back"),
];

/// Returns the place of a job in [`JOBS`], or one behind all of them.
pub fn place(job: &str) -> usize {
    JOBS.iter().position(|&(name, _)| name == job).unwrap_or(JOBS.len())
}

/// Returns what an operation of a job is; nothing for a job that is not of [`JOBS`].
pub fn measures(job: &str) -> &'static str {
    JOBS.get(place(job)).map_or("", |&(_, measures)| measures)
}
