// Package remake makes a disk's file anew beside the old one: from an image, or a larger
// copy of what it has. Changes in place need it, and moves between hosts that share a disk.
//
// It reads images and the old files, and writes the new files under their private names
// and nothing else; what it was asked to make is on its caller's record. It never puts a
// file in the place of another.
//
// Invariants:
//
//   - a file may take longer than any verb: it is made by an actor, the verb says that it
//     lasts, and the same call finds it again;
//   - after Stop nothing writes any more.
package remake
