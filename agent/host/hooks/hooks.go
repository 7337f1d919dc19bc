package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/systemd"
)

// DefaultTimeout is how long a hook may take where nothing else is configured.
const DefaultTimeout = 60 * time.Second

// exitTryAgain is EX_TEMPFAIL.
const exitTryAgain = 75

// maxOutput bounds what is read of a hook's standard output and, apart, of its
// standard error. Arbitrary: far more than data for an undo needs.
const maxOutput = 1 << 20

// maxShown bounds how much of a hook's standard error gets into a reason.
const maxShown = 1024

// What to do when a hook fails.
const (
	Fail = "fail" // the phase fails; the default
	Warn = "warn" // a line in the log, the next hook runs
)

// Setting is `[hooks."<phase>/NN-name"]` of the configuration.
type Setting struct {
	Timeout   time.Duration // 0 for DefaultTimeout
	OnFailure string        // Fail or Warn; empty is Fail
}

// Request is what a hook reads from its standard input.
type Request struct {
	Version     int     `json:"version"` // 1
	Phase       string  `json:"phase"`
	Migration   string  `json:"migration"`
	Instance    string  `json:"instance"`
	Source      string  `json:"source"`
	Destination string  `json:"destination"`
	DomainXML   string  `json:"domain_xml"`
	Context     Context `json:"context"`
}

// Context is what a hook may want to know beyond the names.
type Context struct {
	// MigrationContext is what the move changes about the guest, as the API
	// shows it; null where a phase has none.
	MigrationContext any `json:"migration_context"`
	// MigrationType is Nova's: live-migration, migration (cold), resize, rebuild.
	MigrationType string `json:"migration_type,omitempty"`
	// OldFlavor and NewFlavor are the guest's, before and after; Image is what a rebuilt
	// guest boots from. Nil where a phase has none.
	OldFlavor any `json:"old_flavor,omitempty"`
	NewFlavor any `json:"new_flavor,omitempty"`
	Image     any `json:"image,omitempty"`
	// PowerState is what the guest's user had chosen before; empty where nobody knows.
	PowerState string `json:"power_state,omitempty"`
	// Host is the one that hooks of phase fence are to switch off; nil in other phases.
	Host *Host `json:"host,omitempty"`
	// Data holds what the hooks of the phase that this one undoes or ends (Phase.After)
	// answered, by their names.
	Data map[string]json.RawMessage `json:"data"`
}

// Host is what the fleet's records say of a host that is to be fenced.
type Host struct {
	Name         string    `json:"name"`
	ProviderUUID string    `json:"provider_uuid"`
	HostUUID     string    `json:"host_uuid"`
	Boot         string    `json:"boot"`       // of its kernel, that it has told of last: /proc/sys/kernel/random/boot_id
	UpdatedAt    time.Time `json:"updated_at"` // when it wrote that
	Lease        string    `json:"lease"`      // LeaseHeld, LeaseExpired or LeaseUnknown
}

// How the lease of a host is.
const (
	LeaseHeld    = "held"
	LeaseExpired = "expired"
	LeaseUnknown = "unknown" // the store keeps none, or does not answer
)

// Process names a hook that runs, by its unit or, without a service manager, by pid and start
// time: a pid alone may be another process's by now.
type Process struct {
	Hook  string `json:"hook"`           // <phase>/NN-name
	Unit  string `json:"unit,omitempty"` // of no other hook ever; empty for a child
	PID   int    `json:"pid"`            // leader of its session and process group; 0 for a unit
	Start uint64 `json:"start"`
}

// Runner runs hooks. Its fields are set before the first use and not changed.
type Runner struct {
	// Dir holds a folder for each phase; empty, absent or without that folder
	// means that there are no hooks.
	Dir string
	// Setting gives the configuration of "<phase>/NN-name"; nil means defaults.
	Setting func(hook string) Setting
	// Manager starts each hook as a transient unit; nil means children of this process.
	Manager *systemd.Units
	Runtime runtime.Runtime
	Logger  *slog.Logger
}

// Started is told of a hook's process before it begins: see Run.
type Started func(ctx context.Context, p Process, answers map[string]json.RawMessage) error

// Run runs all hooks of req.Phase in name order and gives what they answered,
// by name. started is told of each process before it begins, with the answers so
// far, and must make both durable; its error ends the hook; nil means nobody keeps
// them.
//
// The first hook that fails ends the phase: fault.Unavailable when it asked for
// another try, fault.Internal otherwise, with a reason that names it and the
// end of what it wrote. The answers of hooks that ran before it come with the
// error, for the undo. A hook whose setting says "warn" fails nothing. One that was
// killed and may live on ends the phase whatever its setting, with ErrNotEnded and
// fault.Unavailable: whoever keeps its record goes on keeping it.
func (r *Runner) Run(ctx context.Context, req Request, started Started) (map[string]json.RawMessage, error) {
	data := make(map[string]json.RawMessage)
	names, err := r.names(req.Phase)
	if err != nil {
		return data, err
	}
	req.Version = 1
	if req.Context.Data == nil {
		req.Context.Data = map[string]json.RawMessage{}
	}
	input, err := encode(req)
	if err != nil {
		return data, fault.New(fault.Internal, "write the input of hooks of %s: %w", req.Phase, err)
	}
	for _, name := range names {
		hook := req.Phase + "/" + name
		set := r.setting(hook)
		begin := r.Runtime.Now()
		var record func(context.Context, Process) error
		if started != nil {
			record = func(ctx context.Context, p Process) error { return started(ctx, p, maps.Clone(data)) }
		}
		out, err := r.one(ctx, hook, set, input, record)
		log := r.Logger.With("hook", hook, "migration", req.Migration, "instance", req.Instance, "seconds", r.Runtime.Now().Sub(begin).Seconds())
		switch {
		case err == nil:
			log.Info("hook done")
			if out != nil {
				data[name] = out
			}
		case set.OnFailure == Warn && ctx.Err() == nil && !errors.Is(err, ErrNotEnded):
			log.Warn("hook failed, as its setting allows", "error", err)
		default:
			return data, err
		}
	}
	return data, nil
}

func (r *Runner) setting(hook string) Setting {
	var s Setting
	if r.Setting != nil {
		s = r.Setting(hook)
	}
	if s.Timeout <= 0 {
		s.Timeout = DefaultTimeout
	}
	return s
}

// hookName is NN-name. leftover is what editors and package managers leave
// beside a file, which nobody wants executed.
var (
	hookName = regexp.MustCompile(`^[0-9]{2}-[A-Za-z0-9][A-Za-z0-9._-]*$`)
	leftover = regexp.MustCompile(`(\.dpkg-[a-z]+|\.rpm(new|save|orig)|\.ucf-[a-z]+|\.bak|\.orig|\.swp)$`)
)

// Names lists the hooks of a phase, in the order in which they run; fault.Invalid where a file that
// is named as a hook cannot be one.
func (r *Runner) Names(phase string) ([]string, error) { return r.names(phase) }

// names lists the hooks of a phase. A file that is named as a hook but cannot
// be one is an error, not an empty place: the operator believes that it runs.
func (r *Runner) names(phase string) ([]string, error) {
	if r.Dir == "" {
		return nil, nil
	}
	dir := filepath.Join(r.Dir, phase)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "list hooks: %w", err)
	}
	var names []string
	var bad []fault.Reason
	for _, e := range entries {
		if !hookName.MatchString(e.Name()) || leftover.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		// Stat, not the entry: a hook may be a link to a file elsewhere.
		fi, err := os.Stat(path)
		switch {
		case err != nil:
			bad = append(bad, fault.Reason{Code: "hook_unreadable", Message: fmt.Sprintf("hook %s: %v", path, err)})
		case !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0:
			bad = append(bad, fault.Reason{Code: "hook_not_executable", Message: fmt.Sprintf("hook %s is not an executable file", path), Change: "chmod +x " + path + ", or remove it"})
		case fi.Mode().Perm()&0o002 != 0:
			// It runs as the agent does, which is root.
			bad = append(bad, fault.Reason{Code: "hook_writable", Message: fmt.Sprintf("hook %s can be written by everybody", path), Change: "chmod o-w " + path})
		default:
			names = append(names, e.Name())
		}
	}
	if len(bad) > 0 {
		return nil, fault.Refuse(fault.Invalid, "list hooks of "+phase, bad...)
	}
	slices.Sort(names)
	return names, nil
}

// one runs a single hook. Nil data without an error means that it answered `{}`
// or nothing.
func (r *Runner) one(ctx context.Context, hook string, set Setting, input []byte, started func(context.Context, Process) error) (data json.RawMessage, err error) {
	runCtx, cancel := r.Runtime.WithTimeout(ctx, set.Timeout)
	defer cancel()

	if runCtx.Err() != nil {
		return nil, fault.New(fault.Unavailable, "run hook %s: %w", hook, context.Cause(runCtx))
	}
	stdout, stderr := &bounded{max: maxOutput}, &bounded{max: maxOutput}
	h, err := r.start(runCtx, hook, set, stdout, stderr)
	if err != nil {
		return nil, refuse(fault.Internal, hook, "could not be started: "+err.Error(), stderr)
	}
	var began Process // nothing, until its gate is opened
	defer func() {
		switch left := h.end(); {
		case left == nil:
		case began != Process{}:
			data, err = nil, notEnded(began, err, left)
		default: // its gate goes away of the closed pipe
			r.Logger.Warn("what is left of a hook could not be ended", "hook", hook, "error", left)
		}
	}()
	if began, err = record(ctx, runCtx, h, hook, stderr, started); err != nil {
		return nil, err
	}
	fed := make(chan struct{})
	r.Runtime.Go("hook input "+hook, func() {
		defer close(fed)
		h.begin(input)
	})
	err = h.wait()
	<-fed
	switch {
	case ctx.Err() != nil:
		return nil, fault.New(fault.Unavailable, "run hook %s: %w", hook, context.Cause(ctx))
	case runCtx.Err() != nil:
		return nil, refuse(fault.Internal, hook, fmt.Sprintf("did not end within %s and was killed", set.Timeout), stderr)
	case exitCode(err) == exitTryAgain:
		return nil, refuse(fault.Unavailable, hook, "asks to try again later (exit status 75)", stderr)
	case err != nil:
		return nil, refuse(fault.Internal, hook, err.Error(), stderr)
	case stdout.cut:
		return nil, refuse(fault.Internal, hook, fmt.Sprintf("wrote more than %d bytes", maxOutput), stderr)
	}
	return answer(hook, stdout.buf.Bytes(), stderr)
}

// record waits for a hook before its gate and tells started of it. An error, in words for the
// caller, means that the hook never began and is ended: killed before its input ends, since an
// end of file is what many a hook waits for. runCtx is ctx with the hook's deadline.
func record(ctx, runCtx context.Context, h run, hook string, stderr *bounded, started func(context.Context, Process) error) (Process, error) {
	p, err := h.stands(runCtx)
	stood := err == nil
	if stood && started != nil {
		err = started(runCtx, p)
	}
	if err == nil {
		return p, nil
	}
	_ = h.end() // once more at the hook's end, where it is told
	_ = h.wait()
	switch {
	case ctx.Err() != nil:
		return Process{}, fault.New(fault.Unavailable, "record hook %s: %w", hook, err) // the undo has come, or the agent ends
	case !stood:
		return Process{}, refuse(fault.Unavailable, hook, "could not be started: "+err.Error(), stderr)
	}
	return Process{}, fault.New(fault.Internal, "record hook %s: %w", hook, err)
}

// exitCode is that of a process that has ended; -1 where it was killed, 0 without an error.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

// answer reads `{}`, `{"data":{…}}` or nothing.
func answer(hook string, out []byte, stderr *bounded) (json.RawMessage, error) {
	if len(bytes.TrimSpace(out)) == 0 {
		return nil, nil
	}
	var a struct {
		Data map[string]json.RawMessage `json:"data"`
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return nil, refuse(fault.Internal, hook, `answered neither {} nor {"data":{…}}: `+err.Error(), stderr)
	}
	if dec.More() {
		return nil, refuse(fault.Internal, hook, "answered more than one JSON document", stderr)
	}
	if a.Data == nil {
		return nil, nil
	}
	data, err := json.Marshal(a.Data)
	if err != nil {
		return nil, fault.New(fault.Internal, "keep the data of hook %s: %w", hook, err)
	}
	return data, nil
}

// encode writes a request as hooks read it: domain XML keeps its < and >, which
// json.Marshal would write as \u003c for the sake of web pages. It ends with a
// newline, without which a shell's read fails.
func encode(req Request) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(req)
	return b.Bytes(), err
}

func refuse(kind fault.Kind, hook, what string, stderr *bounded) error {
	msg := "hook " + hook + " " + what
	if text := strings.TrimSpace(stderr.buf.String()); text != "" {
		if len(text) > maxShown {
			text = "…" + strings.ToValidUTF8(text[len(text)-maxShown:], "")
		}
		msg += ": " + text
	}
	return fault.Refuse(kind, "", fault.Reason{Code: "hook_failed", Message: msg, Change: "see the hook's own log, or set on_failure = \"warn\""})
}

// bounded keeps the first max bytes and swallows the rest, so that a hook that
// writes without end neither blocks nor fills memory.
// The buffer is not embedded: its ReadFrom would go round the bound.
type bounded struct {
	buf bytes.Buffer
	max int
	cut bool
}

// Write never fails.
func (b *bounded) Write(p []byte) (int, error) {
	n := len(p)
	if room := b.max - b.buf.Len(); n > room {
		p, b.cut = p[:room], true
	}
	b.buf.Write(p)
	return n, nil
}
