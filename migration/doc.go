// Package migration holds what all sides of a migration speak of: the reference of an operation,
// the instance, its disks and its context, the commit, the record of a migration with its steps
// and statuses, and what one host asks of another.
//
// It is a leaf: the conductor, the claims, hosts, the API and the simulator import it, and it
// imports none of them. It does no I/O. Package conductor drives migrations.
package migration
