// Package evacuation is what a host decides about a guest of a dead one by itself: what becomes
// of each disk, and what becomes of the guest when nobody conducts its evacuation any more.
//
// It is for package agent/host, whose verbs obey it. It reads what is at the disks' paths here,
// images, and what it is told of claims and records. It writes nothing: what is to be made is on
// the verbs' record first.
//
// Invariants:
//
//   - a file that this host shares with the dead one is used as it is, and is never planned to be
//     made; one that is here and cannot be told to be the very file is in the way;
//   - a disk is made anew only from what its record names, or what an operator has named, and
//     only with his word where something was written to it;
//   - a host finishes alone only a guest that the fleet's records have given to it by that very
//     attempt, and takes back what it prepared only once they never will.
package evacuation
