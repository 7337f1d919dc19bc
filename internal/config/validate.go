package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
)

// Validate gives every fault at once as fault.Invalid, or nil.
func (c *Config) Validate() error {
	if reasons := c.faults(); len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "check configuration", reasons...)
	}
	return nil
}

var (
	providerName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,198}[A-Za-z0-9])?$`)
	// As Placement writes them; in another form two keys could be one aggregate.
	aggregateUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// As package hooks takes them: another would be set and never run.
	hookName = regexp.MustCompile(`^[a-z_]+/[0-9]{2}-[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

// longestHook leaves a step, which is given ten minutes, time for its other hooks. One
// that is cut off by its step's end is begun again by the next try, and so for ever.
const longestHook = Duration(5 * time.Minute)

// longestRuntimeDir leaves room for /streams/MIGRATION-ATTEMPT/qemu/memory.sock below
// it, with attempts of three digits, within the 107 bytes of a socket's address.
const longestRuntimeDir = 107 - len("/streams/") - 40 - len("/qemu/memory.sock")

func (c *Config) faults() []fault.Reason {
	var out []fault.Reason
	bad := func(key string, value any, want string) {
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s = %v: want %s", key, quote(value), want),
			Want: want, Have: fmt.Sprint(value), Change: "correct " + key,
		})
	}
	absolute := func(key, path string) {
		if !filepath.IsAbs(path) {
			bad(key, path, "an absolute path")
		}
	}
	a := c.Agent
	if a.Mode != Observe && a.Mode != Manage {
		bad("agent.mode", a.Mode, `"observe" or "manage"`)
	}
	if a.Name != "" && !providerName.MatchString(a.Name) {
		bad("agent.name", a.Name, "a host name: letters, digits, dots and dashes, at most 200")
	}
	absolute("agent.state_dir", a.StateDir)
	absolute("agent.runtime_dir", a.RuntimeDir)
	absolute("agent.socket", a.SocketPath())
	if len(a.SocketPath()) > 107 { // sun_path of unix(7)
		bad("agent.socket", a.SocketPath(), "at most 107 bytes, which is all a socket's address holds")
	}
	if c.Migration.Transport == TransportStream && len(a.RuntimeDir) > longestRuntimeDir {
		bad("agent.runtime_dir", a.RuntimeDir, fmt.Sprintf(`at most %d bytes with [migration] transport = "stream", whose sockets lie deep below it and have at most 107`, longestRuntimeDir))
	}
	absolute("agent.flavors_dir", a.FlavorsDir)
	absolute("agent.hooks_dir", a.HooksDir)
	if a.Listen != "" {
		if err := hostPort(a.Listen); err != nil {
			bad("agent.listen", a.Listen, "ADDRESS:PORT, or \"\" for none")
		}
	}
	if m := c.Metrics.Listen; m != "" {
		if err := hostPort(m); err != nil {
			bad("metrics.listen", m, "ADDRESS:PORT, or \"\" for none")
		}
	}
	if want := c.Web.fault(); want != "" {
		bad("web.listen", c.Web.Listen, want)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, a.LogLevel) {
		bad("agent.log_level", a.LogLevel, "debug, info, warn or error")
	}
	if a.AuditLog != "" {
		absolute("agent.audit_log", a.AuditLog)
	}
	absolute("pki.ca", c.PKI.CA)
	absolute("pki.cert", c.PKI.Cert)
	absolute("pki.key", c.PKI.Key)

	h := c.Host
	absolute("host.root", h.Root)
	absolute("host.disk_path", h.DiskPath)
	for _, dir := range h.SharedDirs {
		absolute("host.shared_dirs", dir)
	}
	for _, k := range []struct {
		key string
		val int64
	}{{"host.reserved_vcpus", int64(h.ReservedVCPUs)}, {"host.reserved_memory_mb", h.ReservedMemoryMB}, {"host.reserved_disk_gb", h.ReservedDiskGB}} {
		if k.val < 0 || k.val > 1<<31-1 {
			bad(k.key, k.val, "0 or more")
		}
	}
	if both := h.DedicatedCPUs.Intersection(h.SharedCPUs); !both.IsEmpty() {
		out = append(out, fault.Reason{
			Code: "config_cpus_overlap", Message: fmt.Sprintf("host.dedicated_cpus = %q and host.shared_cpus = %q: CPUs %s are in both", h.DedicatedCPUs, h.SharedCPUs, both),
			Want: "no CPU in both", Have: both.String(), Change: "take them out of one of the two",
		})
	}
	if h.ReservedVCPUs > 0 && (!h.DedicatedCPUs.IsEmpty() || !h.SharedCPUs.IsEmpty()) {
		// Nova refuses the same: what the sets leave out is already reserved.
		bad("host.reserved_vcpus", h.ReservedVCPUs, "0 beside dedicated_cpus or shared_cpus: leave the host's CPUs out of both sets instead")
	}
	out = append(out, h.pagesFaults()...)
	out = append(out, c.PCI.faults()...)
	out = append(out, c.Devices.faults()...)
	out = append(out, c.Rights.faults()...)
	out = append(out, c.drainFaults()...)
	if c.Libvirt.Socket != "" {
		absolute("libvirt.socket", c.Libvirt.Socket)
	}
	if c.Libvirt.Definitions != "" {
		absolute("libvirt.definitions", c.Libvirt.Definitions)
	}
	if u, err := url.Parse(c.Libvirt.URI); err != nil || u.Scheme == "" {
		bad("libvirt.uri", c.Libvirt.URI, "a libvirt URI such as qemu:///system")
	}
	if u, err := url.Parse(strings.ReplaceAll(c.Libvirt.PeerURI, "{name}", "name")); err != nil || u.Scheme == "" || u.Host == "" && !u.Query().Has("socket") {
		bad("libvirt.peer_uri", c.Libvirt.PeerURI, "a libvirt URI such as qemu+tls://{name}/system")
	}
	for _, k := range []struct {
		key string
		val Duration
		min Duration
	}{
		{"host.discover_interval", h.DiscoverEvery, 1e9}, {"libvirt.timeout", c.Libvirt.Timeout, 1e8},
		{"placement.timeout", c.Placement.Timeout, 1e8}, {"placement.interval", c.Placement.Interval, 1e8},
		{"placement.audit_interval", c.Placement.AuditInterval, 1e8},
		{"migration.attempt_timeout", c.Migration.AttemptTimeout, 0},
		{"migration.claim_lease", c.Migration.ClaimLease, 1e9},
		{"migration.resize_confirm_window", c.Migration.ResizeConfirmWindow, 0}, {"migration.shutdown_timeout", c.Migration.ShutdownTimeout, 0},
		{"migration.conductor_silence", c.Migration.ConductorSilence, 1e9},
	} {
		if k.val < k.min {
			bad(k.key, k.val, "at least "+k.min.String())
		}
	}
	p := c.Placement
	if u, err := url.Parse(p.URL); p.URL != "" && (err != nil || !placementURL(u)) {
		bad("placement.url", p.URL, "http://…, https://… or unix:/path; `berth placement` serves one")
	}
	switch p.Auth {
	case AuthToken:
		for _, k := range []struct{ key, val string }{
			{"placement.cloud", p.Cloud}, {"placement.clouds_file", p.CloudsFile}, {"placement.region", p.Region}, {"placement.interface", p.Interface},
		} {
			if k.val != "" {
				bad(k.key, k.val, `"" unless placement.auth = "keystone"`)
			}
		}
	case AuthKeystone:
		if p.CloudsFile != "" {
			absolute("placement.clouds_file", p.CloudsFile)
		}
		if !slices.Contains([]string{"", "public", "internal", "admin"}, p.Interface) {
			bad("placement.interface", p.Interface, `"public", "internal", "admin", or "" for what the cloud says`)
		}
		if strings.HasPrefix(p.URL, "unix:") {
			bad("placement.url", p.URL, `http://…, https://…, or "" for what Keystone's catalogue says`)
		}
	default:
		bad("placement.auth", p.Auth, `"token" or "keystone"`)
	}
	if p.ProjectID == "" {
		bad("placement.project_id", p.ProjectID, "the project that adopted guests count for")
	}
	if p.UserID == "" {
		bad("placement.user_id", p.UserID, "the user that adopted guests count for")
	}
	for _, k := range []struct {
		key     string
		val     float64
		initial bool
	}{
		{"placement.cpu_allocation_ratio", p.CPURatio, false}, {"placement.ram_allocation_ratio", p.RAMRatio, false},
		{"placement.disk_allocation_ratio", p.DiskRatio, false}, {"placement.initial_cpu_allocation_ratio", p.InitialCPURatio, true},
		{"placement.initial_ram_allocation_ratio", p.InitialRAMRatio, true}, {"placement.initial_disk_allocation_ratio", p.InitialDiskRatio, true},
	} {
		// Written so that NaN, which TOML can spell, is refused as well.
		if positive := k.val > 0 && k.val <= 10000; !positive && (k.initial || k.val != 0) {
			bad(k.key, k.val, "above 0, at most 10000"+map[bool]string{true: "", false: "; 0 for unset"}[k.initial])
		}
	}
	if p.NUMA != NUMAFlat && p.NUMA != NUMANested {
		bad("placement.numa", p.NUMA, `"flat" or "nested"`)
	}
	absolute("placement.provider_config_dir", p.ProviderConfigDir)
	if !slices.Contains([]string{TransportStream, TransportLibvirtTLS}, c.Migration.Transport) {
		bad("migration.transport", c.Migration.Transport, `"stream" or "libvirt-tls"`)
	}
	if !c.Migration.Ports.valid() {
		bad("migration.ports", c.Migration.Ports, `FIRST-LAST, one port, or "" for any`)
	}
	for _, k := range []struct {
		key  string
		list []string
	}{{"migration.allowed_paths", c.Migration.AllowedPaths}, {"migration.allowed_emulators", c.Migration.AllowedEmulators}} {
		for _, path := range k.list {
			if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
				bad(k.key, path, "absolute paths without . and .., and not /")
			}
		}
	}
	for _, label := range c.Migration.AllowedLabels {
		if model, text, _ := strings.Cut(label, ":"); model == "" || text == "" {
			bad("migration.allowed_labels", label, "MODEL:LABEL or MODEL:none, as in dac:+107:+107")
		}
	}
	out = append(out, c.Migration.optionFaults()...)
	out = append(out, c.Migration.weightFaults()...)
	out = append(out, c.Fleet.faults()...)
	if !slices.Contains([]string{ArrivalsRefuse, ArrivalsAllow}, c.Guard.Arrivals) {
		bad("guard.arrivals", c.Guard.Arrivals, `"refuse" or "allow"`)
	}
	absolute("guard.directory", c.GuardDir())
	absolute("guard.hook", c.Guard.Hook)
	for _, name := range slices.SortedFunc(maps.Keys(c.Peers), cmp.Compare) {
		key := fmt.Sprintf("peers.%q", name)
		if !providerName.MatchString(name) {
			bad(key, name, "a provider's name")
		}
		if host, _, err := net.SplitHostPort(c.Peers[name]); err != nil || host == "" || hostPort(c.Peers[name]) != nil {
			bad(key, c.Peers[name], "HOST:PORT")
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(c.Hooks), cmp.Compare) {
		hook, key := c.Hooks[name], fmt.Sprintf("hooks.%q", name)
		if !hookName.MatchString(name) {
			bad(key, name, `"<phase>/NN-name", as the executable lies in agent.hooks_dir`)
		} else if phase, _, _ := strings.Cut(name, "/"); !slices.Contains(HookPhases, phase) {
			bad(key, name, "a phase that there is: "+strings.Join(HookPhases, ", "))
		}
		if hook.Timeout < 0 || hook.Timeout > longestHook {
			bad(key+".timeout", hook.Timeout, "0 for 60s, or at most "+longestHook.String())
		}
		if !slices.Contains([]string{"", "fail", "warn"}, hook.OnFailure) {
			bad(key+".on_failure", hook.OnFailure, `"fail" or "warn"`)
		}
		if strings.HasPrefix(name, "fence/") && hook.OnFailure == "warn" {
			bad(key+".on_failure", hook.OnFailure, `"fail": a host whose fencing failed is not off`)
		}
	}
	return out
}

// mostWeight keeps a weight from what a float64 cannot tell from its neighbour, and from
// NaN and infinity, which TOML can spell. Arbitrary.
const mostWeight = 1e12

func (m Migration) weightFaults() []fault.Reason {
	var out []fault.Reason
	bad := func(key string, value any, want string) {
		out = append(out, fault.Reason{
			Code: "config_value", Message: fmt.Sprintf("%s = %v: want %s", key, value, want), Want: want, Have: fmt.Sprint(value), Change: "correct " + key,
		})
	}
	const want = "a number from -1e12 to 1e12: above 0 near hosts go first, below 0 last, 0 for no matter"
	if sound := m.NearWeight >= -mostWeight && m.NearWeight <= mostWeight; !sound {
		bad("migration.near_weight", m.NearWeight, want)
	}
	for _, aggregate := range slices.Sorted(maps.Keys(m.NearWeightByAggregate)) {
		key, x := fmt.Sprintf("migration.near_weight_by_aggregate.%q", aggregate), m.NearWeightByAggregate[aggregate]
		if !aggregateUUID.MatchString(aggregate) {
			bad(key, x, "the uuid of an aggregate of Placement's for a key, in small letters: 8-4-4-4-12 hexadecimal digits")
		}
		if sound := x >= -mostWeight && x <= mostWeight; !sound {
			bad(key, x, want)
		}
	}
	return out
}

func quote(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case NUMA:
		return fmt.Sprintf("%q", string(v))
	case Ports:
		return fmt.Sprintf("%q", string(v))
	case Mode:
		return fmt.Sprintf("%q", string(v))
	case Duration:
		return fmt.Sprintf("%q", v.String())
	}
	return fmt.Sprint(v)
}

func placementURL(u *url.URL) bool {
	switch u.Scheme {
	case "http", "https":
		return u.Host != ""
	case "unix":
		return u.Host == "" && filepath.IsAbs(u.Path)
	}
	return false
}

func hostPort(s string) error {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return err
	}
	_, err = net.LookupPort("tcp", port)
	return err
}
