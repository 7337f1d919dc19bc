package libvirt

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"berth/internal/fault"
)

// How long an aborted job may take to end before it is helped: both arbitrary,
// together one second. An abort that nothing hinders ends within a tenth.
const (
	abortLook  = 100 * time.Millisecond
	abortLooks = 10
)

// unstick ends what keeps an aborted migration from ending. With disks that are
// copied, libvirt cancels QEMU's mirror jobs and waits for them; a mirror whose
// link was cut with writes on their way waits for TCP to give up, a quarter of
// an hour, and meanwhile libvirt refuses every other job on the domain. QEMU has
// the command yank for just this (docs: QEMU QMP reference, "Yank feature"): it
// shuts the sockets of the named instances down. Named are only the nodes that
// libvirt makes for a migration's copies, migration-TARGET-storage; the guest's
// own disks are never touched, also where they are on NBD.
//
// Measured with libvirt 9.0.0 and QEMU 10.0.2: query-yank and yank are answered
// while the job hangs, and the job ends within a tenth of a second after.
func (d *Driver) unstick(ctx context.Context, uuid string) error {
	answer, err := d.monitor(ctx, uuid, `{"execute":"query-yank"}`)
	if err != nil {
		return err
	}
	var known struct {
		Return []yankInstance `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &known); err != nil {
		return fault.New(fault.Internal, "read what can be yanked of domain %s: %w", uuid, err)
	}
	var dead []yankInstance
	for _, i := range known.Return {
		if i.Type == "block-node" && strings.HasPrefix(i.NodeName, "migration-") && strings.HasSuffix(i.NodeName, "-storage") {
			dead = append(dead, i)
		}
	}
	if len(dead) == 0 {
		return nil
	}
	command, err := json.Marshal(map[string]any{"execute": "yank", "arguments": map[string]any{"instances": dead}})
	if err != nil {
		return fault.New(fault.Internal, "write a yank for domain %s: %w", uuid, err)
	}
	d.log.Warn("an aborted migration does not end: shutting down the connections of its disk copies", "instance", uuid, "nodes", len(dead))
	_, err = d.monitor(ctx, uuid, string(command))
	return err
}

// yankInstance is QEMU's YankInstance, as far as it is of use here.
type yankInstance struct {
	Type     string `json:"type"`
	NodeName string `json:"node-name,omitempty"`
}

func (d *Driver) monitor(ctx context.Context, uuid, command string) (string, error) {
	r := request{verb: "ask the monitor of", uuid: uuid, changes: true}
	return do(ctx, d.control, r, func(c Conn) (string, error) { return c.Monitor(uuid, command) })
}
