package api

import (
	"context"
	"time"

	"berth/migration"
)

// apartRows are the verbs of migration.ApartVerbs but those that ship disks: asked by a
// third host that conducts, or by the source that conducts itself.
func apartRows() []route {
	type host = migration.Host
	type ref = migration.Ref
	return []route{
		// Asked of the source.
		verb("snapshot-disks", "Hold the files of a guest that is off as they are.", migration.AccessConductor, slow, nil,
			func(ctx context.Context, h host, r ref, d SnapshotRequest) (migration.Snapshot, error) {
				return h.SnapshotDisks(ctx, r, d.Targets)
			}),
		plain("drop-snapshot", "Undo snapshot-disks.", migration.AccessConductor, slow, host.DropSnapshot),
		plain("disconnect", "Take a guest that is off from its networks and volumes.", migration.AccessConductor, slow, host.Disconnect),
		plain("reconnect", "Undo disconnect.", migration.AccessConductor, slow, host.Reconnect),
		plain("hide-instance", "The copy here is the one that is not shown.", migration.AccessConductor, quick, host.HideInstance),
		act("carry-volumes", "Keep what a guest was given and lost where it was, for its return.", migration.AccessConductor, quick, nil,
			func(ctx context.Context, h host, r ref, v migration.VolumeChanges) error {
				return h.CarryVolumes(ctx, r, v)
			}),

		// Asked of the destination.
		act("copy-instance", "Set up the instance's record here, hidden.", migration.AccessConductor, quick, nil,
			func(ctx context.Context, h host, r ref, i migration.InstanceCopy) error {
				return h.CopyInstance(ctx, r, i)
			}),
		plain("remove-copy", "Undo copy-instance.", migration.AccessDestination, quick, host.RemoveCopy),
		plain("show-instance", "The copy here is the one that is shown.", migration.AccessConductor, quick, host.ShowInstance),
		verb("read-volumes", "What a guest was given and lost here since it came.", migration.AccessConductor, quick, nil,
			func(ctx context.Context, h host, r ref, _ nothing) (migration.VolumeChanges, error) {
				return h.ReadVolumes(ctx, r)
			}),
	}
}

// SnapshotRequest are the arguments of the verb snapshot-disks.
type SnapshotRequest struct {
	Targets []string `json:"targets"` // of disks
}

// apart asks a verb of migration.ApartVerbs. A host whose agent is older than these verbs
// is refused by its version.
func (c *Client) apart(ctx context.Context, name string, most time.Duration, in, out any) error {
	return c.knowsNo(ctx, c.verb(ctx, name, most, in, out), routeUnknown, "moves between hosts that share nothing")
}

// SnapshotDisks implements migration.SourceApartVerbs.
func (c *Client) SnapshotDisks(ctx context.Context, ref migration.Ref, targets []string) (out migration.Snapshot, err error) {
	return out, c.apart(ctx, "snapshot-disks", slowVerb, with(ref, SnapshotRequest{Targets: targets}), &out)
}

// DropSnapshot implements migration.SourceApartVerbs.
func (c *Client) DropSnapshot(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "drop-snapshot", slowVerb, alone(ref), nil)
}

// Disconnect implements migration.SourceApartVerbs.
func (c *Client) Disconnect(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "disconnect", slowVerb, alone(ref), nil)
}

// Reconnect implements migration.SourceApartVerbs.
func (c *Client) Reconnect(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "reconnect", slowVerb, alone(ref), nil)
}

// HideInstance implements migration.SourceApartVerbs.
func (c *Client) HideInstance(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "hide-instance", quickVerb, alone(ref), nil)
}

// CarryVolumes implements migration.SourceApartVerbs.
func (c *Client) CarryVolumes(ctx context.Context, ref migration.Ref, v migration.VolumeChanges) error {
	return c.apart(ctx, "carry-volumes", quickVerb, with(ref, v), nil)
}

// CopyInstance implements migration.DestinationApartVerbs.
func (c *Client) CopyInstance(ctx context.Context, ref migration.Ref, i migration.InstanceCopy) error {
	return c.apart(ctx, "copy-instance", quickVerb, with(ref, i), nil)
}

// RemoveCopy implements migration.DestinationApartVerbs.
func (c *Client) RemoveCopy(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "remove-copy", quickVerb, alone(ref), nil)
}

// ShowInstance implements migration.DestinationApartVerbs.
func (c *Client) ShowInstance(ctx context.Context, ref migration.Ref) error {
	return c.apart(ctx, "show-instance", quickVerb, alone(ref), nil)
}

// ReadVolumes implements migration.DestinationApartVerbs.
func (c *Client) ReadVolumes(ctx context.Context, ref migration.Ref) (out migration.VolumeChanges, err error) {
	return out, c.apart(ctx, "read-volumes", quickVerb, alone(ref), &out)
}
