package libvirt

import (
	"context"
	"encoding/json"
	"time"

	"berth/internal/fault"
)

// The guest's agent is asked by virDomainQemuAgentCommand, which alone bounds the
// wait in the daemon: virDomainFSFreeze would hold the domain's agent for as long
// as a hung guest likes. The price is the mark "custom-ga-command" in libvirt's log
// of the domain.

// PingAgent implements driver.GuestAgent.
func (d *Driver) PingAgent(ctx context.Context, uuid string) error {
	_, err := d.agent(ctx, request{verb: "ping the agent of", uuid: uuid}, "guest-ping")
	return err
}

// FreezeFilesystems implements driver.GuestAgent.
func (d *Driver) FreezeFilesystems(ctx context.Context, uuid string) (int, error) {
	return d.filesystems(ctx, request{verb: "freeze filesystems of", uuid: uuid, changes: true}, "guest-fsfreeze-freeze")
}

// ThawFilesystems implements driver.GuestAgent.
func (d *Driver) ThawFilesystems(ctx context.Context, uuid string) (int, error) {
	return d.filesystems(ctx, request{verb: "thaw filesystems of", uuid: uuid, changes: true}, "guest-fsfreeze-thaw")
}

// filesystems gives a command that answers a number. An agent that does not answer
// a ping has not been asked, so that nothing is in doubt.
func (d *Driver) filesystems(ctx context.Context, r request, command string) (int, error) {
	if err := d.PingAgent(ctx, r.uuid); err != nil {
		return 0, err
	}
	answer, err := d.agent(ctx, r, command)
	if err != nil {
		return 0, err
	}
	var count struct {
		Return *int `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &count); err != nil {
		return 0, fault.New(fault.InDoubt, "%s: read the agent's answer: %w", r, err)
	}
	if count.Return == nil {
		return 0, fault.New(fault.InDoubt, "%s: the agent's answer has no number: %.200s", r, answer)
	}
	return *count.Return, nil
}

// agent asks the agent, in the daemon no longer than ctx.
func (d *Driver) agent(ctx context.Context, r request, command string) (string, error) {
	wait := d.o.CallTimeout
	if end, ok := ctx.Deadline(); ok {
		wait = end.Sub(d.rt.Now())
	}
	// Whole seconds; the daemon's answer shall come before the deadline.
	seconds := max(1, int((wait-time.Millisecond)/time.Second))
	return do(ctx, d.control, r, func(c Conn) (string, error) {
		answer, err := c.Agent(r.uuid, `{"execute":"`+command+`"}`, seconds)
		switch code := codeOf(err); {
		case code == errArgumentUnsupported: // the domain has no channel for an agent
			err = fault.New(fault.Unavailable, "%s: %w", r, err)
		case r.changes && (code == errAgentUnresponsive || code == errAgentTimeout):
			err = fault.New(fault.InDoubt, "%s: %w", r, err)
		}
		return answer, err
	})
}
