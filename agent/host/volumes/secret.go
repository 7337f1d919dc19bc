package volumes

import (
	"cmp"
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// Secrets are what libvirt opens a disk with: Ceph's and iSCSI's passwords, passphrases
// of encrypted volumes. They are not copied, so each host needs the same.
type Secrets struct {
	Lookup Lookup
	nothingAttached
}

// Kind implements Volume.
func (Secrets) Kind() string { return "secret" }

// Serves implements Volume.
func (Secrets) Serves(d Disk) bool { return len(d.Secrets) > 0 }

// Check implements Volume.
func (s Secrets) Check(ctx context.Context, d Disk) ([]fault.Reason, error) {
	var out []fault.Reason
	for _, ref := range d.Secrets {
		err := s.Lookup.Secret(ctx, ref)
		switch {
		case errors.Is(err, fault.NotFound):
			name := cmp.Or(ref.UUID, ref.Type+" "+ref.Usage)
			out = append(out, fault.Reason{
				Code: "secret_missing", Message: "disk " + d.Target + ": libvirt has no secret " + name, Want: name, Change: "on that host: virsh secret-define FILE, then virsh secret-set-value UUID --interactive",
			})
		case err != nil:
			return nil, err
		}
	}
	return out, nil
}

// Plan implements Volume.
func (Secrets) Plan(context.Context, Disk) (*Made, error) { return nil, nil }

// Prepare implements Volume.
func (Secrets) Prepare(context.Context, Made) error { return nil }

// Activate implements Volume.
func (Secrets) Activate(context.Context, Disk) error { return nil }

// Undo implements Volume.
func (Secrets) Undo(context.Context, Made, func(driver.Pool) (bool, error)) error { return nil }
