// Package host is this machine as moves and operators see it: the host verbs of
// package migration and the instance verbs of the API, over the claim tracker
// and the hypervisor driver.
//
// It reads the ledger, the hypervisor, guests' disk files and the operator's
// hook folder. Through the tracker it alone writes verb records (what a verb
// has made, for its undo), and it alone makes, resumes and ends domains and
// makes and removes disk files.
//
// Invariants:
//
//   - a guest is started or resumed only while its token is here;
//   - every effect of a verb that a crash could orphan is on record before it
//     happens, and an undo removes what is on record and nothing else;
//   - an undo is buried before it begins, and a verb at or below it is refused;
//   - one verb at a time works on one instance; a stream is not a verb: it is an
//     actor, and its outcome is on record before anybody decides by it;
//   - what could not be asked is never taken for "not there": no claim, disk or
//     definition goes because of a read that failed.
//
// A destination never learns from its own hypervisor who owns a guest, and a
// source never from the destination's: the table of handover.go decides by the
// source's domain and the recorded outcome, the tracker makes commit and
// reclaim exclude each other.
package host
