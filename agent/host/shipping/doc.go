// Package shipping is where the disks of guests come to one host and leave from it, while
// their guests are off: the host's part of the verbs ReadDisk, ShippedSoFar, WriteDisk,
// SealDisks and SendDisks, and what a preparation and its undo do about files that are
// shipped. How they are shipped is migration.Ship's, whoever does it.
//
// It reads the files of guests (disks.Files), and what its host knows of them (Guests). It
// alone writes the files that come, under private names until they are whole, and two
// records of the host's memory: what comes here by an attempt and how far it is durable,
// and which files an attempt has given away.
//
// # Invariants
//
//   - A file has its place only when it is whole, durable, and of the checksum that the
//     source gave: nothing opens it before.
//   - What is said to be durable is: a sync comes before its record, the record before
//     the answer.
//   - An undo is buried before it takes anything away, and when it returns nothing more
//     is written, also by a message that is late.
//   - A file that was here before is only compared, never written to.
//   - Nothing is read of a guest that could be running, or by another attempt than the
//     one that has powered it off; and of one that holds a snapshot, nothing else than it
//     holds.
//   - Room is looked for before anything is made, beside what other attempts have yet to
//     write.
package shipping
