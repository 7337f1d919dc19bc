// Package change makes another guest of one that stays on its host: of another flavor (a
// resize in place), or with another image (a rebuild). It has the verbs of
// migration.InPlaceVerbs and the plan of every change, here or on another host.
//
// It reads the guest's definition, images, and the claims of the migration. It alone
// writes the record of a change (Record), exchanges the guest's claim with the change's,
// and puts new files in the place of the guest's disks. What ends and starts the guest's
// process is the host's (Guests).
//
// Invariants:
//
//   - what the record tells of is durable before it is done, and everything that can fail
//     is done while the guest runs, or beside its disks;
//   - claims are exchanged in one commit: the guest uses one of the two, whatever dies;
//   - until Finish was asked for, the guest can be given back what it was; from then on
//     nothing goes back;
//   - an undo puts back the files that are on record and no other, and a disk that people
//     have removed since is not its to give back.
package change
