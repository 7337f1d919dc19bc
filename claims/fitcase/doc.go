// Package fitcase reads placement cases, has claims/flavor and claims/fit answer
// them, and says what would have to change where the answer is no.
//
// A case is one JSON object: a host, a request in Nova's words (flavor, image
// properties, PCI requests) and limits, in the format of the collections of cases
// that Berth is compared with; `berth fit --help` shows one. Fields that the
// package has no use for are let pass; those that it uses must be right, and
// every fault is named with its JSON Pointer.
//
// It is for `berth fit`, which reads cases as lines or composes one from a host
// and a flavor. It reads and writes nothing but the values it is given.
//
// Invariants:
//
//   - the topology in an answer is stage one's, field by field;
//   - a change is printed only after it was applied to the case's document, and
//     the document was read again and fitted;
//   - a refusal for capacity has at least one change, and the first is the
//     smallest that was found: fewest operations, then the smallest departure
//     (see Change).
//
// # How changes are found
//
// First, changes of one operation to the request and the limits are tried as
// they are: a softer policy, another page size, fewer devices, less memory where
// the cells are filled automatically, the ratio that would do. Then every pair
// of guest cell and host cell is priced by the operations on the host cell that
// would make the one fit the other, and claims/fit's Cheapest chooses the pairs.
// That is done under several terms (only free what is in use; dedicate shared
// cores; also enlarge; also raise the ratios), each giving one change or a few,
// and where that gives too few, upon each softer request. What devices and
// networks still lack on the cells so chosen is added, and what a change does
// without is left out again. A host with too few cells is given new ones, which
// can be made to hold any guest cell whose memory its page size divides; where it
// does not, the request's page size is dropped first. So there is always one.
package fitcase
