// Package architecture holds the tests that keep the house in the shape that
// ARCHITECTURE.md draws: who may import whom, of this module and of others.
package architecture

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "berth"

// rule says what one package, or a folder of packages, may import besides the
// standard library. Own names packages of this module by their path without
// the module's name; a trailing /... takes the folder whole.
type rule struct {
	own   []string // of this module
	third []string // third-party modules or packages, by prefix
	why   string
}

const bolt, etree, systemdGo = "go.etcd.io/bbolt", "github.com/beevik/etree", "github.com/coreos/go-systemd"

// table is the import table. The longest matching key rules a package.
var table = map[string]rule{
	"topology":       {why: "leaf values: know nobody, do nothing"},
	"claims/fit":     {own: []string{"topology"}, why: "pure: values in, an answer out"},
	"claims/flavor":  {own: []string{"migration/options", "topology"}, why: "pure: a flavor in, a guest topology out"},
	"claims/fitcase": {own: []string{"claims/fit", "claims/flavor", "topology"}, why: "pure: cases in, answers out"},
	"claims/pci":     {own: []string{"topology"}, why: "pure: values in, devices and pools out"},
	"hwdiscovery":    {own: []string{"topology", "internal/..."}, third: []string{"github.com/jaypipes/ghw", "golang.org/x/sys"}, why: "the only user of ghw"},
	"claims":         {own: []string{"claims/fit", "claims/pci", "migration", "topology", "internal/..."}, third: []string{"github.com/google/uuid"}, why: "one lock, one ledger; never the hypervisor or Placement"},
	"driver":         {own: []string{"topology", "internal/..."}, why: "the contract knows no implementation"},
	"driver/drivertest": {own: []string{"driver", "topology", "internal/...", "driver/libvirt/domainxml"},
		third: []string{etree, "github.com/google/uuid", "github.com/google/go-cmp", "go.uber.org/goleak", "libvirt.org/go/libvirtxml"}, why: "suite and fake know the contract only"},
	"driver/libvirt":           {own: []string{"driver", "driver/libvirt/domainxml", "topology", "internal/..."}, third: []string{"libvirt.org/go/libvirtxml", "golang.org/x/sync"}, why: "one narrow connection interface; the bindings come from main"},
	"driver/libvirt/domainxml": {own: []string{"topology"}, third: []string{etree}, why: "pure: documents in, documents out"},
	"driver/libvirt/rpc":       {own: []string{"driver", "driver/libvirt", "internal/..."}, third: []string{"github.com/digitalocean/go-libvirt"}, why: "the pure Go binding"},
	"driver/libvirt/native":    {own: []string{"driver", "driver/libvirt", "internal/..."}, third: []string{"libvirt.org/go/libvirt"}, why: "the cgo binding, behind its build tag"},
	"placementclient":          {own: []string{"internal/..."}, third: []string{"github.com/hashicorp/go-retryablehttp", "github.com/google/uuid"}, why: "Placement's words and its HTTP client"},
	"placementclient/keystone": {own: []string{"internal/..."}, third: []string{"github.com/gophercloud/gophercloud"}, why: "logs in for the client; the only user of gophercloud"},
	"placement":                {own: []string{"placementclient", "internal/..."}, third: []string{bolt, "github.com/google/uuid"}, why: "the same API served; shares the vocabulary only"},
	"placement/placementtest":  {own: []string{"placementclient", "internal/..."}, third: []string{"github.com/anishathalye/porcupine", "github.com/google/uuid", "github.com/google/go-cmp"}, why: "what every Placement must pass, ours and OpenStack's"},
	"fleet":                    {own: []string{"internal/..."}, why: "records of all hosts and what they prove; knows no host and no move"},
	"fleet/etcd":               {own: []string{"fleet", "internal/..."}, third: []string{"go.etcd.io/etcd", "google.golang.org/grpc", "go.uber.org/zap"}, why: "the records in etcd"},
	"fleet/permit":             {own: []string{"fleet", "internal/fault"}, why: "pure: a writer, records and changes in, an answer out"},
	"fleet/embedded":           {own: []string{"fleet", "fleet/permit", "internal/..."}, third: []string{bolt, "github.com/hashicorp/go-retryablehttp"}, why: "the records beside the embedded Placement, and their client"},
	"fleet/fleettest":          {own: []string{"fleet", "internal/..."}, third: []string{"github.com/google/go-cmp"}, why: "what every store of records must do"},
	"migration/task":           {own: []string{"internal/..."}, why: "steps, journal, undo; knows no hypervisor"},
	"migration/halves":         {own: []string{"placementclient", "internal/..."}, why: "what the two consumers of a move hold; knows no host"},
	"migration/halves/halvestest": {own: []string{"migration/halves", "placementclient", "internal/..."},
		third: []string{"github.com/google/go-cmp"}, why: "what they must hold in every Placement, ours and OpenStack's"},
	"migration/candidates": {own: []string{"topology", "placementclient", "internal/fault"}, why: "a wish in, questions and an order of hosts out"},
	"migration/candidates/candidatestest": {own: []string{"migration/candidates", "topology", "placementclient", "internal/fault"},
		third: []string{"github.com/google/go-cmp"}, why: "what must be found in every Placement, ours and OpenStack's"},
	"migration/options":              {own: []string{"internal/fault", "migration/converge"}, why: "pure: what may be said about a live migration, and who said it"},
	"migration/converge":             {own: []string{"internal/fault"}, why: "pure: samples and a schedule in, actions out"},
	"migration/turns":                {own: []string{"internal/fault"}, why: "pure: limits and those that wait in, who may go out"},
	"agent/metrics":                  {own: []string{"migration", "migration/converge", "migration/task", "internal/..."}, third: []string{"github.com/prometheus/client_golang"}, why: "samples in, metrics out; asks nobody"},
	"agent/web":                      {own: []string{"agent/api", "agent/drawing", "migration", "migration/task", "topology", "internal/..."}, why: "a moment in, a page out; asks nobody"},
	"agent/web/webtest":              {own: []string{"agent/api", "agent/drawing", "agent/host", "agent/web", "claims", "migration", "migration/task", "topology", "internal/fault"}, why: "a host with something of everything"},
	"migration/drain":                {own: []string{"migration", "migration/conductor", "migration/task", "internal/..."}, third: []string{"github.com/google/uuid"}, why: "a queue over a narrow interface; never a host, an agent or the fleet's records"},
	"migration":                      {own: []string{"migration/converge", "migration/options", "migration/task", "migration/turns", "topology", "placementclient", "internal/fault"}, why: "a leaf: what all sides of a migration speak of; does nothing"},
	"migration/operation":            {own: []string{"migration", "internal/fault"}, why: "a leaf: what one host asks of another, as values"},
	"migration/transfer":             {own: []string{"migration", "migration/task", "internal/..."}, why: "copies disk files from host to host; knows neither workflow nor file system"},
	"migration/conductor":            {own: []string{"migration", "migration/candidates", "migration/converge", "migration/halves", "migration/operation", "migration/options", "migration/task", "migration/transfer", "migration/turns", "topology", "placementclient", "internal/..."}, third: []string{"github.com/google/uuid"}, why: "workflows of host operations; never a driver or a ledger"},
	"stream":                         {own: []string{"systemd", "internal/..."}, third: []string{"golang.org/x/sys"}, why: "one migration's forwarding process; knows neither hypervisor nor ledger"},
	"systemd":                        {own: []string{"internal/..."}, third: []string{systemdGo, "github.com/godbus/dbus"}, why: "the manager's protocols"},
	"systemd/systemdtest":            {own: []string{"systemd"}, why: "a service manager for tests"},
	"internal/store":                 {own: []string{"internal/..."}, third: []string{bolt, "golang.org/x/sys"}, why: "one bbolt file"},
	"internal/store/storetest":       {own: []string{"internal/..."}, third: []string{"github.com/google/go-cmp"}, why: "a store in memory, and what every store must do"},
	"internal/config":                {own: []string{"internal/...", "topology", "claims/pci", "claims/flavor", "migration/converge", "migration/options"}, third: []string{"github.com/pelletier/go-toml"}, why: "files to values, also of the pure packages"},
	"internal/screen":                {own: []string{"internal/visible"}, third: []string{"go.yaml.in/yaml", "golang.org/x/term"}, why: "what is printed: tables, paragraphs, documents; knows nothing of moves"},
	"internal":                       {own: []string{"internal/..."}, third: []string{"golang.org/x/sys"}, why: "imports none of the house"},
	"agent/inventory":                {own: []string{"claims/fit", "claims/pci", "topology", "placementclient"}, third: []string{"github.com/google/uuid"}, why: "pure: host, devices and ratios in, provider tree out"},
	"agent/host/admission":           {own: []string{"agent/host/disks", "driver", "driver/libvirt/domainxml", "topology", "internal/fault"}, why: "what another host's domain XML may name here; asks the hypervisor for other instances' only"},
	"agent/host/allocation":          {own: []string{"claims", "topology"}, why: "pure: what Placement is told of a claim"},
	"agent/host/attempts":            {own: []string{"claims", "migration", "internal/fault"}, why: "reads of a ledger about attempts; writes nothing"},
	"agent/host/change":              {own: []string{"agent/host/attempts", "agent/host/demand", "agent/host/disks", "agent/host/fileusers", "agent/host/hooks", "agent/host/memory", "agent/host/phases", "agent/host/remake", "agent/host/shipping", "claims", "claims/flavor", "driver", "driver/libvirt/domainxml", "migration", "migration/operation", "topology", "internal/..."}, why: "changes in place; ends and starts no guest"},
	"agent/host/demand":              {own: []string{"claims/flavor", "topology", "internal/fault"}, why: "pure: a flavor in, what it asks of a host out"},
	"agent/host/dispatch":            {own: []string{"agent/host/memory", "migration", "migration/operation", "internal/fault"}, why: "locks, tombstones and the mode before an operation; knows none"},
	"agent/host/evacuation":          {own: []string{"agent/host/disks", "agent/host/remake", "migration", "internal/fault"}, why: "what becomes of a lost guest and its disks; decides, and does nothing"},
	"agent/host/vanished":            {own: []string{"claims", "driver", "migration", "internal/fault", "internal/runtime"}, why: "a missing domain: undefined, or not loaded; releases nothing itself"},
	"agent/host/external":            {own: []string{"agent/host/allocation", "agent/host/attempts", "agent/host/demand", "agent/host/hooks", "agent/host/memory", "agent/host/phases", "claims", "claims/flavor", "driver", "driver/libvirt/domainxml", "migration", "migration/operation", "topology", "internal/..."}, third: []string{"github.com/google/uuid"}, why: "migrations that others conduct; ends and starts no instance"},
	"agent/host/fileusers":           {own: []string{"agent/host/disks", "driver", "internal/fault"}, third: []string{"github.com/google/uuid"}, why: "who uses a file; removes nothing"},
	"agent/host/memory":              {own: []string{"claims", "migration", "internal/..."}, why: "records, tombstones and turns of verbs; knows no verb"},
	"agent/host/networks":            {own: []string{"driver", "internal/fault"}, third: []string{"golang.org/x/sys"}, why: "documents in, questions and Open vSwitch's ports out"},
	"agent/host/phases":              {own: []string{"agent/host/attempts", "agent/host/hooks", "agent/host/memory", "claims", "migration", "internal/..."}, why: "hooks of a move, once for each attempt; knows no verb"},
	"agent/host/processes":           {own: []string{"agent/host/disks", "internal/fault", "internal/stuck"}, third: []string{"golang.org/x/sys"}, why: "what of an instance lives here by the kernel's word; never asks libvirt"},
	"agent/host/remake":              {own: []string{"agent/host/disks", "agent/host/memory", "driver/libvirt/domainxml", "migration", "internal/..."}, why: "new files beside old ones; puts none in its place"},
	"agent/host/streams":             {own: []string{"agent/host/disks", "agent/host/memory", "claims", "driver", "migration", "migration/options", "internal/..."}, why: "a move's transport and job; the source decides elsewhere"},
	"agent/host/volumes":             {own: []string{"driver", "internal/fault"}, why: "documents in, questions and libvirt's pools out"},
	"agent/host/disks/diskstest":     {own: []string{"agent/host/disks", "internal/fault"}, third: []string{"github.com/google/go-cmp"}, why: "files in memory, and what all files must do"},
	"agent/host/shipping":            {own: []string{"agent/host/disks", "agent/host/fileusers", "agent/host/memory", "migration", "migration/transfer", "internal/fault", "internal/runtime"}, why: "files of guests that are off, in pieces; what it needs of its host it says itself"},
	"agent/audit":                    {own: []string{"agent/inventory", "placementclient", "topology"}, why: "pure: what three parties say in, verdicts and writes out"},
	"agent/auditor/facts":            {own: []string{"agent/audit", "agent/auditor", "agent/inventory", "claims", "driver", "migration", "migration/conductor", "internal/..."}, why: "what a host has on record, for an audit; judges and writes nothing"},
	"agent/counted":                  {own: []string{"agent/host", "agent/host/allocation", "agent/inventory", "migration/halves", "placementclient", "topology", "internal/fault"}, why: "what instances hold in Placement, as their host writes it"},
	"agent/reporter/reportertest":    {own: []string{"agent/inventory", "agent/reporter", "claims/pci", "placementclient", "topology", "internal/..."}, third: []string{"github.com/google/uuid", "github.com/google/go-cmp"}, why: "what a reporter must do to every Placement, ours and OpenStack's"},
	"agent/inventory/providerconfig": {own: []string{"agent/inventory", "placementclient"}, third: []string{"go.yaml.in/yaml"}, why: "pure: a file's bytes in, what it adds to providers out"},
	"agent/bundle":                   {why: "pure: documents and texts in, an archive without secrets out"},
	"agent/death":                    {own: []string{"agent/host/hooks", "fleet", "migration", "migration/conductor", "internal/..."}, why: "what proves that a host is dead; ends no instance and starts none"},
	"agent/recovery":                 {own: []string{"agent/api", "agent/guard", "agent/host", "claims", "migration"}, why: "pure: what was told of an instance in, what is put back out"},
	"agent/doctor":                   {own: []string{"agent/api", "agent/host/hooks", "driver", "fleet", "placementclient", "systemd", "topology", "internal/..."}, third: []string{"golang.org/x/sys"}, why: "looks at a host and says what helps; changes nothing"},
	"agent/drawing":                  {own: []string{"topology", "internal/visible"}, why: "pure: a host and its claims in, a picture out"},
	"agent/lease":                    {own: []string{"agent/api", "agent/witness", "fleet", "internal/..."}, why: "a lease and a watchdog; ends no instance and starts none"},
	"agent/answers":                  {why: "when each part answered last; asks nobody"},
	"agent/witness":                  {why: "pure: what the witnesses of an instance's owner say in, whether it may be started out"},
	"agent/guard":                    {own: []string{"driver/libvirt/domainxml", "internal/..."}, why: "answers from a ledger's facts and its own files; never the hypervisor"},
	"agent":                          {own: []string{"agent/...", "claims/...", "driver", "driver/libvirt/domainxml", "fleet/...", "hwdiscovery", "migration/...", "placementclient/...", "stream", "systemd", "topology", "internal/..."}, third: []string{"github.com/google/uuid", "golang.org/x/sync", "golang.org/x/sys", "github.com/pelletier/go-toml"}, why: "joins the parts; the binding comes from main"},
	"packaging":                      {why: "files, embedded for whoever installs them"},
	"cmd":                            {own: []string{"..."}, third: []string{"..."}, why: "main names what is linked"},
	"test":                           {own: []string{"..."}, third: []string{"..."}, why: "looks at everything"},
}

// soleUsers are third-party modules that one place alone may use.
var soleUsers = map[string][]string{
	"github.com/jaypipes/ghw":               {"hwdiscovery"},
	"github.com/digitalocean/go-libvirt":    {"driver/libvirt/rpc"},
	"libvirt.org/go/libvirt":                {"driver/libvirt/native"},
	"github.com/spf13/cobra":                {"cmd"},
	"github.com/hashicorp/go-retryablehttp": {"placementclient"},
	"github.com/gophercloud/gophercloud":    {"placementclient/keystone"},
	"github.com/anishathalye/porcupine":     {"placement/placementtest"},
	"go.etcd.io/etcd":                       {"fleet/etcd"},
	"github.com/prometheus/client_golang":   {"agent/metrics"},
	"github.com/godbus/dbus":                {"systemd"},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func list(t *testing.T) []pkg {
	t.Helper()
	// Both bindings are looked at; files for other systems are not.
	cmd := exec.Command("go", "list", "-e", "-tags", "native", "-json=ImportPath,Imports,Standard", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v\n%s", err, &stderr)
	}
	var pkgs []pkg
	dec := json.NewDecoder(bytes.NewReader(out))
	for dec.More() {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatalf("read the list of packages: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 5 {
		t.Fatalf("only %d packages listed: the test looks at nothing", len(pkgs))
	}
	return pkgs
}

// within reports whether path stands in the folder named by pattern.
func within(path, pattern string) bool {
	if pattern == "..." {
		return true
	}
	if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
		return path == folder || strings.HasPrefix(path, folder+"/")
	}
	return path == pattern
}

func ruleOf(path string) (key string, r rule, ok bool) {
	for k, v := range table {
		if (path == k || strings.HasPrefix(path, k+"/")) && len(k) > len(key) {
			key, r, ok = k, v, true
		}
	}
	return key, r, ok
}

func faults(p pkg) []string {
	var out []string
	path := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
	key, r, ok := ruleOf(path)
	if !ok {
		return []string{fmt.Sprintf("%s stands in no row of the import table: give it one", path)}
	}
	for _, imp := range p.Imports {
		if own, mine := strings.CutPrefix(imp, module+"/"); mine {
			self := within(own, key+"/...") && within(path, key+"/...") && key != "driver" && key != "internal" && key != "migration"
			if !self && !slices.ContainsFunc(r.own, func(pat string) bool { return within(own, pat) }) {
				out = append(out, fmt.Sprintf("%s imports %s, which it may not (%s: %s)", path, own, key, r.why))
			}
			continue
		}
		if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
			continue // the standard library, and "C"
		}
		allowed := slices.ContainsFunc(r.third, func(pre string) bool {
			return pre == "..." || imp == pre || strings.HasPrefix(imp, pre+"/")
		})
		if !allowed {
			out = append(out, fmt.Sprintf("%s imports %s, which it may not (%s: %s)", path, imp, key, r.why))
		}
		for mod, users := range soleUsers {
			if (imp == mod || strings.HasPrefix(imp, mod+"/")) && !within(path, "test/...") &&
				!slices.ContainsFunc(users, func(u string) bool { return within(path, u+"/...") }) {
				out = append(out, fmt.Sprintf("%s imports %s, of which %s is the only user", path, mod, strings.Join(users, ", ")))
			}
		}
	}
	return out
}

func TestImports_FollowTheTable(t *testing.T) {
	for _, p := range list(t) {
		for _, f := range faults(p) {
			t.Error(f)
		}
	}
}

func TestImports_OnlyMainLinksABinding(t *testing.T) {
	for _, p := range list(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imp := range p.Imports {
			own := strings.TrimPrefix(imp, module+"/")
			if (within(own, "driver/libvirt/rpc") || within(own, "driver/libvirt/native")) && !within(path, "cmd/...") && !within(path, "test/...") {
				t.Errorf("%s imports %s: only cmd/berth names the binding that is linked", path, own)
			}
		}
	}
}

// TestImports_TheTestCanFail shows the table to packages that break it.
func TestImports_TheTestCanFail(t *testing.T) {
	for _, p := range []pkg{
		{ImportPath: module + "/topology", Imports: []string{module + "/internal/fault"}},
		{ImportPath: module + "/claims", Imports: []string{module + "/driver"}},
		{ImportPath: module + "/migration", Imports: []string{module + "/migration/conductor"}},
		{ImportPath: module + "/migration/conductor", Imports: []string{module + "/claims"}},
		{ImportPath: module + "/agent/host", Imports: []string{"github.com/jaypipes/ghw"}},
		{ImportPath: module + "/placement", Imports: []string{"github.com/spf13/cobra"}},
		{ImportPath: module + "/internal/store", Imports: []string{module + "/claims"}},
		{ImportPath: module + "/nowhere"},
	} {
		if len(faults(p)) == 0 {
			t.Errorf("%s importing %v passes", p.ImportPath, p.Imports)
		}
	}
}
