package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/agent/guard"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/stuck"
)

// novaComputeID is where nova-compute keeps the uuid of its compute node
// (nova/virt/node.py).
const novaComputeID = "/var/lib/nova/compute_id"

// mayManage refuses mode manage while somebody else owns this host's provider,
// naming everything that was found. Two writers of one provider destroy each
// other's inventory.
func (a *Agent) mayManage(ctx context.Context) error {
	var reasons []fault.Reason
	add := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	files, procs := a.novaPlaces()
	for _, file := range files {
		id, err := stuck.Read(&a.calls, file, func() ([]byte, error) { return os.ReadFile(file) })
		switch {
		case err == nil:
			add("nova_compute_id", fmt.Sprintf("%s exists (%s): nova-compute owns, or owned, this host's provider", file, bytes.TrimSpace(id)),
				"take the host out of Nova and remove the file, or stay in mode observe")
		case !errors.Is(err, fs.ErrNotExist):
			add("nova_compute_id", "whether nova-compute owns this host cannot be told: "+err.Error(), "make the file readable, or remove it")
		}
	}
	for i, proc := range procs {
		running, err := novaComputes(&a.calls, proc)
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue // a copied machine without processes; the hardware is refused where that matters
		}
		if err != nil {
			add("nova_compute", "whether nova-compute runs here cannot be told: "+err.Error(), "let the agent read "+proc)
		}
		for _, pid := range running {
			add("nova_compute", fmt.Sprintf("nova-compute runs here (pid %d)", pid), "stop and disable it, or stay in mode observe")
		}
	}
	if r, conflict := a.providerConflict(ctx); conflict {
		if len(reasons) == 0 && guard.Managed(a.config().Agent.StateDir) {
			// A host that has guests and perhaps moves under way: they are not left alone
			// because of what somebody did to Placement. Nothing is written there.
			err := fault.Refuse(fault.Forbidden, "report host "+a.name, r)
			a.foreign.Store(&err)
			a.log.Error("placement has another provider of this host's name: no claim is given and nothing is written there", "error", err)
			return nil
		}
		reasons = append(reasons, r)
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "manage host "+a.name, reasons...)
}

// novaPlaces are where nova-compute is looked for: on the machine that the agent
// sees, and, where [host] root is another folder, in that too. An agent in a
// container has its host there.
func (a *Agent) novaPlaces() (files, procs []string) {
	files, procs = []string{a.opt.NovaComputeID}, []string{a.opt.Proc}
	if files[0] == "" {
		files[0] = novaComputeID
	}
	if procs[0] == "" {
		procs[0] = "/proc"
	}
	if root := a.config().Host.Root; filepath.Clean(root) != "/" {
		files = append(files, filepath.Join(root, novaComputeID))
		procs = append(procs, filepath.Join(root, "proc"))
	}
	return files, procs
}

// providerConflict looks for a provider of this name with another uuid. A
// Placement that does not answer is no conflict: the reporter looks again before
// it writes anything.
func (a *Agent) providerConflict(ctx context.Context) (fault.Reason, bool) {
	ctx, cancel := a.rt.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	p, err := a.placement.ProviderByName(ctx, a.name)
	a.answers = err == nil || errors.Is(err, fault.NotFound)
	if err != nil || p.UUID == a.uuid {
		return fault.Reason{}, false
	}
	mine, theirs := a.name+" ("+a.uuid+")", p.Name+" ("+p.UUID+")"
	return fault.Reason{
		Code: "provider_identity", Message: "Placement has resource provider " + theirs + ", and this host is " + mine, Want: mine, Have: theirs,
		Change: "if nothing else writes that provider, put its uuid into " + filepath.Join(a.config().Agent.StateDir, "provider_uuid") + "; else stay in mode observe",
	}, true
}

// keyIdentity is the record of which hypervisor the provider's uuid was made on.
const keyIdentity = "identity"

// identity binds the provider to the machine: a copied disk carries the
// provider's uuid to another machine, and two would write one provider.
type identity struct {
	ProviderUUID string `json:"provider_uuid"`
	HostUUID     string `json:"host_uuid"` // the hypervisor's
}

// recognise holds the hypervisor's host uuid against the one that the provider
// was first seen with. While they differ no claim is given, nothing is reported
// and nothing is settled: fault.Forbidden, both named.
func (a *Agent) recognise(ctx context.Context) error {
	node, err := a.driver.Node(ctx)
	if err != nil {
		return err
	}
	raw, found, err := a.db.Get(ctx, store.BucketAgent, keyIdentity)
	if err != nil {
		return fmt.Errorf("read this host's identity: %w", err)
	}
	now := identity{ProviderUUID: a.uuid, HostUUID: node.UUID}
	if found {
		var was identity
		if err := json.Unmarshal(raw, &was); err != nil {
			return fmt.Errorf("read this host's identity: %w", err)
		}
		if was.ProviderUUID != now.ProviderUUID && was.HostUUID != now.HostUUID && was.HostUUID != "" {
			return a.isStranger(fault.Reason{
				Code: "ledger_of_another_host",
				Message: "the ledger is of provider " + was.ProviderUUID + " on the hypervisor with host uuid " + was.HostUUID + ", and this is provider " + now.ProviderUUID +
					" on " + now.HostUUID,
				Want: now.HostUUID, Have: was.HostUUID,
				Change: "put this host's own " + a.ledger.path + " in its place, or move it away and restart the agent: it is rebuilt",
			})
		}
		if was.ProviderUUID == now.ProviderUUID && was.HostUUID != now.HostUUID {
			return a.isStranger(fault.Reason{
				Code:    "host_identity",
				Message: "resource provider " + a.uuid + " belongs to the hypervisor with host uuid " + was.HostUUID + ", and this one has " + now.HostUUID,
				Want:    was.HostUUID, Have: now.HostUUID,
				Change: "on a copied machine, empty " + a.config().Agent.StateDir + "; after a change of libvirt's host_uuid, set the old one again (libvirtd.conf)",
			})
		}
	}
	a.hypervisor.found(node)
	if a.stranger.Swap(nil) != nil {
		a.hardware.apply()
	}
	if node.Hostname != "" && node.Hostname != a.name && a.config().Agent.Name == "" {
		// Not taken: the name is needed before libvirt answers, and must not change
		// when libvirt resolves itself otherwise one day.
		a.log.Warn("libvirt calls this host by another name than the machine: set [agent] name to the one that peers and Placement know", "name", a.name, "libvirt", node.Hostname)
	}
	if found && sameProvider(raw, a.uuid) || node.UUID == "" {
		return nil
	}
	if raw, err = json.Marshal(now); err != nil {
		return err
	}
	return a.db.Put(ctx, store.BucketAgent, keyIdentity, raw)
}

// isStranger notes why this host's identity is not believed.
func (a *Agent) isStranger(r fault.Reason) error {
	err := fault.Refuse(fault.Forbidden, "recognise host "+a.name, r)
	a.stranger.Store(&err)
	a.hardware.apply()
	return err
}

// sameProvider says whether a record is of this provider; one of another is
// from before the operator gave the host a new uuid, and is replaced.
func sameProvider(raw []byte, uuid string) bool {
	var was identity
	return json.Unmarshal(raw, &was) == nil && was.ProviderUUID == uuid
}

// estranged is why this host's identity is not believed.
func (a *Agent) estranged() error {
	if err := a.stranger.Load(); err != nil {
		return *err
	}
	return nil
}

// estrange is told by the reporter whether Placement's provider is somebody
// else's. Then no new claim is given: its allocation would be written there.
func (a *Agent) estrange(err error) {
	if err == nil {
		if a.foreign.Swap(nil) != nil {
			a.hardware.apply()
		}
		return
	}
	if a.foreign.Swap(&err) == nil {
		a.hardware.apply()
	}
}

// novaComputes finds nova-compute by what runs: the program, the script that an
// interpreter runs, or the name that the kernel gives a script started by its
// first line (proc(5), comm; 15 letters, and this name has 12).
//
// A process of another machine does not count: one with a root folder and a
// network of its own, as in a system container. One with a root folder of its own
// alone is how Kolla and TripleO run this host's nova-compute, and counts.
func novaComputes(calls *stuck.Calls, proc string) ([]int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that ended meanwhile is none that runs. One whose memory does not answer is
		// known by its name.
		cmdline, err := stuck.OfProcess(calls, pid, func() ([]byte, error) { return os.ReadFile(filepath.Join(proc, e.Name(), "cmdline")) })
		if err != nil && !errors.Is(err, fault.Unavailable) {
			continue
		}
		// Absent in a copied /proc, which then has the command line alone.
		comm, _ := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		if (string(bytes.TrimSpace(comm)) == "nova-compute" || isNovaCompute(args)) && !otherMachine(proc, e.Name()) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// otherMachine says whether a process has both a root folder and a network that
// are not the agent's. What cannot be read is taken for this machine's.
func otherMachine(proc, pid string) bool {
	differ := func(link string) bool {
		mine, err := os.Stat(filepath.Join(proc, "self", link))
		if err != nil {
			return false
		}
		theirs, err := os.Stat(filepath.Join(proc, pid, link))
		return err == nil && !os.SameFile(mine, theirs)
	}
	return differ("root") && differ("ns/net")
}

// isNovaCompute looks at the program, and where that is an interpreter at the
// script it runs.
func isNovaCompute(args []string) bool {
	for i, arg := range args {
		switch base := filepath.Base(arg); {
		case base == "nova-compute":
			return true
		case i == 0 && isInterpreter(base), i > 0 && strings.HasPrefix(arg, "-"):
			continue
		}
		return false
	}
	return false
}

func isInterpreter(name string) bool {
	return strings.HasPrefix(name, "python") || name == "sh" || name == "bash" || name == "dash"
}
