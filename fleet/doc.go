// Package fleet is what hosts must know of each other when one of them dies: who had which
// guest, who is alive, who was declared dead and by what proof.
//
// It is for package agent, which keeps the records of its own host's guests and asks for those
// of a dead one. It reads and alone writes the keys below in a Store: etcd (package fleet/etcd),
// or the one that comes with the embedded Placement (package fleet/embedded). A host goes on
// without the store: claims, guests that run and moves between hosts that live never wait for it.
// What waits for it is an evacuation, and the start of a guest in the first minutes of a boot.
//
//	hosts/<name>                      Host: who it is, in which boot, and whether it fences itself
//	alive/<name>                      the boot, under a lease; gone when the lease is (etcd only)
//	deaths/<name>                     Death: this host is dead, by this proof
//	instances/<uuid>                  Instance: who has its token, by which epoch, and what it is
//	evacuated/<source>/<migration>    Evacuated: what the source has to clean up when it returns
//
// # One owner
//
// A host's ledger says whether a token is there, and its record here follows. While a host is
// dead nobody asks its ledger, and the record decides: TakeOver gives the token to another host
// with the next epoch, in one commit that holds only while the record is as it was read and the
// death stands. So of two that evacuate a guest one does, and none does once its source is back.
//
// A host that comes back takes its own death away (Return), and from that commit on nobody can
// take a guest from it. Then, before it starts anything, it gives way to every record with a
// higher epoch than its own. Its guests of a boot before are not started until it has asked.
//
// A record that lags behind a move is no danger: TakeOver wants the epoch that it was read with,
// Placement has the guest where it went, and whoever evacuates looks at both.
package fleet
