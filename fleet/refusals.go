package fleet

import (
	"errors"

	"berth/internal/fault"
)

// ErrNoStore is of a question to the records where no store keeps them.
func ErrNoStore() error {
	return fault.Refuse(fault.Forbidden, "ask the fleet's records", fault.Reason{
		Code: NoStore, Message: "no store is configured in which hosts keep records of their guests", Change: "set [fleet] etcd on all hosts, or use the embedded Placement",
	})
}

// StoreThere tells a record that is not there from a store that is not: of the second it gives ErrNoStore.
func StoreThere(err error) error {
	if errors.Is(err, fault.NotFound) && fault.HasReason(err, NoStore) {
		return ErrNoStore()
	}
	return err
}

// NotDead is why a host's instances are not evacuated, with what makes it count as dead.
func NotDead(host string) fault.Reason {
	return fault.Reason{
		Code: "not_dead", Message: "host " + host + " does not count as dead", Change: "berth host fence " + host + ", or berth host declare-dead " + host + ` --reason "how you know"`,
	}
}
