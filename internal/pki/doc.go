// Package pki makes and reads the certificates that Berth's hosts and operators
// know each other by.
//
// It is for sites that have no authority of their own: any CA whose certificates
// keep the rules below serves as well, and everything that checks a peer reads
// certificates through this package alone (Names, RoleOf).
//
// # The rules
//
//   - A host's certificate carries the provider's name as a DNS name (or IP) in
//     its subjectAltName, and both extended usages, since each host is server
//     and client of the others.
//   - An operator's certificate carries urn:berth:operator:NAME as a URI and no
//     DNS name, and only the client's usage: it can never pass for a host.
//   - A reader's carries urn:berth:reader:NAME in its place: it may look at what an operator
//     may, and change nothing.
//   - A right that not everybody has is a URI too, urn:berth:right:NAME, beside the
//     name that it is given to: share-nothing counts in an operator's certificate,
//     conduct in a host's, and neither in the other (Gives).
//   - keyUsage holds digitalSignature and keyEncipherment. The second means
//     nothing for an ECDSA key, but libvirt 9 rejects certificates without it.
//   - Keys are ECDSA P-256, which libvirt (GnuTLS), QEMU and Go all speak. The
//     same files serve all three under their own names.
//
// # Seals
//
// A host signs a small record that others carry, with the key that it is known by
// (Sign); whoever gets it holds the chain that came with it against his own CA at
// the moment of the signing, and the name against the host that the record names
// (Verify). A certificate that has run out since, or was replaced, is no reason to
// refuse what it has signed.
//
// # Files
//
// Init alone writes DIR/ca.crt and DIR/ca.key; a host's folder holds ca.crt,
// host.crt and host.key, an operator's ca.crt, operator.crt and operator.key. A
// key is 0600, a certificate 0644; each is written whole under another name,
// synced and renamed, so that no reader ever sees half of one. A CA is never
// replaced unless the caller says so.
package pki
