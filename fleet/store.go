package fleet

import (
	"context"
	"encoding/json"

	"berth/internal/fault"
)

// Store keeps records by key for all hosts of a fleet. Every call may block until ctx ends, and
// is fault.Unavailable when the store does not answer; nothing was changed then, but by Commit,
// whose outcome is fault.InDoubt where it is not known. What was committed is durable and
// is seen by every later call of every host.
type Store interface {
	// Get reads one record; fault.NotFound when there is none.
	Get(ctx context.Context, key string) (Record, error)
	// List reads all records whose keys begin so, in order of key. A large list is of more than one
	// moment: a record that is there all the while is in it, as it was at some time of the call.
	List(ctx context.Context, prefix string) ([]Record, error)
	// Commit does all changes in one step where all conditions hold, and none else:
	// fault.GenerationConflict then. Changes name each key once.
	Commit(ctx context.Context, when []Condition, changes ...Change) error
}

// Finder is an ability of a Store that can look for the records of one host. It is found by a type
// assertion.
type Finder interface {
	// ListOf is List without the records that name another host in their field host; of every host
	// for "".
	ListOf(ctx context.Context, prefix, host string) ([]Record, error)
}

// HostOf gives the host that a record names in its field host; empty where it names none, or cannot
// be read.
func HostOf(value []byte) string {
	var of struct {
		Host string `json:"host"`
	}
	if json.Unmarshal(value, &of) != nil {
		return ""
	}
	return of.Host
}

// Record is a value under its key.
type Record struct {
	Key   string
	Value []byte
	// Revision is another after every write of the key, of equal values too, and never 0. Of
	// one key a later one is greater, also of a key that was deleted and written again.
	Revision uint64
}

// Condition is that a key is still as it was read.
type Condition struct {
	Key      string
	Revision uint64 // 0: there is none
}

// Change writes or deletes one key.
type Change struct {
	Key   string
	Value []byte // nil deletes; deleting what is not there is no error
}

// Leases is an ability of a Store that can tell who is alive: found by a type assertion. A
// store without it knows records only.
type Leases interface {
	// Lease writes key under a new lease of this length, or renews the one that this process has
	// on it. The key is then there for at least the length after the call began. The value may
	// change with it.
	Lease(ctx context.Context, key string, value []byte, length Seconds) error
	// Release ends the lease, and the key with it. Best effort: an expired one is gone too.
	Release(ctx context.Context, key string) error
	// NoQuorum gives no error when a majority of the store's members said at one moment during
	// the call that they serve nobody, or refused the connection: no lease ends then, and each that
	// there is begins anew when they are back. Else the error says what they answered. refused is
	// that it takes the refused connections to make that majority: a firewall refuses them too,
	// so that they prove nothing unless others bear it out.
	NoQuorum(ctx context.Context) (refused bool, err error)
}

// Permits is an ability of a Store that lets not every host write everything: found by a type
// assertion.
type Permits interface {
	// Allowed says whether the store would let this process make changes: fault.Forbidden with the
	// reasons where not. It changes nothing, and looks at no condition.
	Allowed(ctx context.Context, changes ...Change) error
}

// Seconds is a length in whole seconds, as leases have it.
type Seconds int64

// MaxValue bounds one record's value, and MaxChanges the keys that one Commit names, in
// conditions and changes each. A guest's record is its document and some lists: 20 to 60 KiB.
// Both are below what etcd takes by its defaults (1.5 MiB a request, 128 operations).
const (
	MaxValue   = 1 << 20
	MaxChanges = 120
)

// CheckCommit says what is wrong with a Commit before it is sent: fault.Invalid. Every Store
// refuses what it refuses.
func CheckCommit(when []Condition, changes []Change) error {
	seen := map[string]bool{}
	size := 0
	for _, w := range when {
		if w.Key == "" {
			return fault.New(fault.Invalid, "commit: a condition names no key")
		}
	}
	for _, c := range changes {
		size += len(c.Value)
		switch {
		case c.Key == "":
			return fault.New(fault.Invalid, "commit: a change names no key")
		case seen[c.Key]:
			return fault.New(fault.Invalid, "commit: record %s is changed twice", c.Key)
		case size > MaxValue:
			return fault.New(fault.Invalid, "commit: record %s: all values together have more than %d bytes", c.Key, MaxValue)
		}
		seen[c.Key] = true
	}
	if len(when) > MaxChanges || len(changes) > MaxChanges {
		return fault.New(fault.Invalid, "commit: %d conditions and %d changes: at most %d of each", len(when), len(changes), MaxChanges)
	}
	return nil
}
