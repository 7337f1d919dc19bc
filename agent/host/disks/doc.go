// Package disks reads and makes the files behind guests' disks.
//
// It is for three questions of a move: what is a disk (Image: format, sizes,
// chain), is it the same file on both hosts (Identity), and how is a file made
// at a destination so that the undo removes exactly that file and no other
// (Plan, Build, Publish, Unmake). Which tells files of one host apart, by whichever name
// they are reached. And for one of a change where the guest is: how a file is
// made anew in the place of another, so that the undo brings that one back
// (PlanReplace, BuildCopy or BuildFrom, Replace, PutBack, DropKept).
//
// It reads through QEMU's own tool, qemu-img, always with the format that the
// guest's definition names and never by probing: a guest that owns a raw disk
// can write a qcow2 header with any backing file into it. It asks the kernel
// for statfs, statx and file handles. It writes only files it was told to make
// or remove.
//
// # Making a file exactly once
//
// A file is built under a name that only this migration has, beside its place,
// and linked to its place when it is complete and when its inode number and
// birth time are on record. link(2) refuses an occupied place. So at every
// moment of a crash each name is either provably ours (the private name, or the
// recorded inode) or not ours, and is left alone.
//
// A file that replaces another is built under such a name too. The old one gets a second
// name first (link(2)), then rename(2) gives its first to the new one: at every moment
// the path leads to one of the two, and their stamps, both on record before, say which.
package disks
