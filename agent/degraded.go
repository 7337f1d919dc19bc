package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/reporter"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/store"
)

// What is missing at the start, and what the agent does without it. An agent that is
// not there finishes no move and answers no hook, so it starts with what it has, and
// says what it lacks (law 6: a guest that runs is not failed for it).
//
//	missing or wrong                          the agent                                     where it says so
//	second process (database, socket)         does not start                                error
//	configuration file, host's name           does not start: usage                         error
//	local socket or state directory           does not start: it could tell nobody          error
//	nova-compute owns this host               does not start in mode manage                 error
//	provider of this name, another uuid       a host that never managed does not start;     error, placement
//	                                          else no claims, nothing written there
//	database damaged, foreign, gone           sets it aside, rebuilds it (ledger.go)        ledger
//	database an older copy of itself          asks the others what it does not know         ledger
//	database replaced while it runs           no claims, nothing durable; restart it        ledger
//	database newer, unreadable                stand-in: no claims, no starts, no verbs      ledger
//	records that cannot be read               passed over, asked of others (ledger.go)      ledger
//	disk full                                 no claims; releases, undos, moves go on       ledger
//	provider_uuid missing or wrong            taken from the ledger; else no claims         identity
//	marker of mode manage cannot be left      no claims                                     identity
//	record whether it is disabled             disabled                                      configuration
//	record of what was reported               what is left in Placement stays there         configuration
//	audit log cannot be written               its lines go to the journal                   configuration
//	flavor files                              those that can be read                        configuration
//	users and groups of [rights]              the others have theirs                        configuration
//	keystone's clouds file                    as a Placement that does not answer           placement
//	Placement silent                          no allocations change; moves wait for it      placement
//	certificates                              its own machine alone                         peers, page
//	certificates other at a reload            goes on with those of its start               configuration
//	page's port taken                         no page; tried again                          page
//	peers' port taken                         its own machine alone; tried again            peers
//	libvirt silent                            the ledger alone; settles when it answers     libvirt
//	another libvirt (a copied machine)        no claims, nothing settled or written         libvirt
//	hardware unreadable                       the last good reading; else no claims         hardware
//	journal of one move                       that move is in doubt; the others go on       migrations

// The parts that faults name.
const (
	partFiles    = "files"
	partFlavors  = "flavors"
	partRights   = "rights"
	partDisabled = "disabled"
	partReported = "reported"
	partProvider = "provider_uuid"
	partMarker   = "marker"
	partAuditLog = "audit_log"
	// partCertificate are certificate files that a reload did not take up.
	partCertificate = "certificate"
)

// faults are what could not be had at the start. The zero value is ready.
type faults struct {
	// mu guards what follows; nothing is called under it.
	mu    sync.Mutex
	noted map[string]error
	holds map[string]error // for these no claim is given
}

// note remembers what is wrong with a part; nil for nothing.
func (f *faults) note(part string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.noted, part)
		return
	}
	if f.noted == nil {
		f.noted = map[string]error{}
	}
	f.noted[part] = err
}

// withhold is note for what no claim can be given without.
func (f *faults) withhold(part string, err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holds == nil {
		f.holds = map[string]error{}
	}
	f.holds[part] = err
}

// held is why no claim is given.
func (f *faults) held() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, part := range slices.Sorted(maps.Keys(f.holds)) {
		errs = append(errs, f.holds[part])
	}
	return errors.Join(errs...)
}

var changes = map[string]string{
	partFiles:    "correct the files (berth config check) and reload the agent; until then it goes by what it has read before",
	partFlavors:  "correct the files and reload the agent",
	partRights:   "correct [rights] and reload the agent: who is not found has none",
	partDisabled: "berth host set --enable, or --disable with a reason",
	partReported: "look at the host's traits and resource classes in Placement: what Berth had put there and no longer wants stays",
	partProvider: "put the uuid of this host's provider into the file, and restart the agent",
	partAuditLog: "let the agent write the file of [agent] audit_log; until then its lines are in the agent's own log",
	partMarker:   "let the agent write its state directory, and restart it",
}

// conditions are the faults in berth status; none where there are none.
func (f *faults) conditions() []api.Condition {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []api.Condition
	for _, c := range []struct {
		name   string
		faults map[string]error
	}{{"identity", f.holds}, {"configuration", f.noted}} {
		var reasons []fault.Reason
		var words []string
		for _, part := range slices.Sorted(maps.Keys(c.faults)) {
			err := c.faults[part]
			words = append(words, err.Error())
			more := fault.ReasonsOf(err)
			if len(more) == 0 {
				more = []fault.Reason{{Code: part, Message: err.Error(), Change: changes[part]}}
			}
			reasons = append(reasons, more...)
		}
		if len(reasons) > 0 {
			out = append(out, api.Degraded(c.name, strings.Join(words, "; "), reasons...))
		}
	}
	return out
}

// identifyProvider reads the provider's uuid. One that is lost is known to the ledger;
// a host that managed guests does not take a new one, which would make it a stranger
// to its own provider.
func (a *Agent) identifyProvider(ctx context.Context, c config.Config) {
	path := filepath.Join(c.Agent.StateDir, reporter.IdentityFile)
	_, err := os.Stat(path)
	lost := errors.Is(err, os.ErrNotExist) && guard.Managed(c.Agent.StateDir)
	if !lost {
		if a.uuid, err = reporter.Identity(c.Agent.StateDir); err == nil {
			return
		}
	}
	if lost {
		err = fmt.Errorf("read the provider's uuid: %s is missing, though this host has managed guests", path)
	}
	var was identity
	raw, found, _ := a.db.Get(ctx, store.BucketAgent, keyIdentity)
	if found && json.Unmarshal(raw, &was) == nil && uuid.Validate(was.ProviderUUID) == nil {
		a.uuid = was.ProviderUUID
		a.log.Warn("the provider's uuid is taken from the ledger", "provider", a.uuid, "error", err)
		if lost {
			// A file that is there and wrong is somebody's to look at.
			err = reporter.KeepIdentity(c.Agent.StateDir, a.uuid)
		}
		a.faults.note(partProvider, err)
		return
	}
	// Nobody's uuid: nothing is found under it, and nothing is written.
	a.uuid = uuid.NewString()
	a.faults.withhold(partProvider, err)
	a.foreign.Store(&err)
	a.log.Error("the provider of this host is not known: no claim is given and nothing is written to placement", "error", err)
}
