package guard

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// Deadline is how long the agent may take to answer: libvirt holds the guest's
// job, and an operator waits. Arbitrary, far above what an answer from memory
// and one commit take.
const Deadline = 2 * time.Second

// Hook is the process that libvirt's hook runs.
type Hook struct {
	Files    Files
	Arrivals Arrivals
	// Definitions is the folder where libvirt keeps definitions, NAME.xml each; empty
	// for none.
	Definitions string
	// Unmanaged says that no agent has ever run in mode manage here (see Managed).
	Unmanaged bool
	// Observing is the mode that the configuration names; the agent's own counts
	// while it answers.
	Observing bool
	// Ask asks the agent. An error means that it did not decide.
	Ask     func(ctx context.Context, c Call) (Answer, error)
	Runtime runtime.Runtime

	In       io.Reader // the document
	Out, Err io.Writer // what replaces it, and what libvirt shows to the caller
}

// The exit codes of Run: libvirt refuses what exits with anything but 0.
const (
	ExitAllow  = 0
	ExitRefuse = 1
)

// Run answers one call of libvirt's, with args as libvirt gives them: guest,
// operation, sub-operation, and one that says nothing.
func (h Hook) Run(ctx context.Context, args []string) int {
	var c Call
	for i, into := range []*string{&c.Guest, (*string)(&c.Operation), &c.SubOperation} {
		if i < len(args) {
			*into = args[i]
		}
	}
	if h.Unmanaged || !c.Watched() {
		return ExitAllow
	}
	text, err := io.ReadAll(io.LimitReader(h.In, 16<<20))
	c.DomainXML = string(text)
	if err != nil {
		return h.refuse(c, "", []fault.Reason{{Code: "document", Message: "the guest's document could not be read: " + err.Error()}})
	}
	c.Defined = h.defined(c)
	asking, cancel := h.Runtime.WithTimeout(ctx, Deadline)
	a, err := h.Ask(asking, c)
	cancel()
	if err == nil {
		if !a.Allow {
			return h.refuse(c, a.Message, a.Reasons)
		}
		return h.allow(c, a.DomainXML)
	}
	return h.alone(c, err)
}

// defined reads Call.Defined; a definition that cannot be read is none.
func (h Hook) defined(c Call) string {
	if h.Definitions == "" || c.Operation == Migrate || strings.Contains(c.Guest, "/") {
		return ""
	}
	f, err := openFile(filepath.Join(h.Definitions, c.Guest+".xml"))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return ""
	}
	d := ReadDocument(string(text))
	if d.UUID == "" || d.UUID != ReadDocument(c.DomainXML).UUID {
		return ""
	}
	return d.Migration
}

// alone decides by files.
func (h Hook) alone(c Call, silent error) int {
	d := ReadDocument(c.DomainXML)
	now := h.Runtime.Boot().Since
	f := FileFacts{Operation: c.Operation, Observing: h.Observing, Arrivals: h.Arrivals, Readable: d.Err == nil, Marked: d.Marked, DocMigration: d.Migration, Silent: silent.Error()}
	f.Owner, f.Owned, f.Why = h.Files.Owner(d.UUID)
	// One that is no good proves as much as metadata does.
	f.Marked = f.Marked || !f.Owned && h.Files.HasOwner(d.UUID)
	was, begun := h.Files.Begun(d.UUID, now)
	f.IsBegun = begun && was == d.Migration
	decision, reasons := Alone(f)
	switch decision {
	case AllowArrival:
		// Noted before it is allowed: without the note libvirt's own prepare and
		// start of the arrival would be refused, later and less clearly.
		if err := h.Files.Begin(d.UUID, d.Migration, now); err != nil {
			return h.refuse(c, "", []fault.Reason{
				{Code: "guard_files", Message: "the arrival could not be noted: " + err.Error(), Change: "make room in " + h.Files.Dir + ", or start the agent"},
			})
		}
		if f.Owned && f.Owner.State == OwnerArriving {
			return ExitAllow
		}
		// The agent claims it when it is back.
		if err := h.Files.NoteStarted(Started{Instance: d.UUID, Arrived: true}); err != nil {
			return h.refuse(c, "", []fault.Reason{
				{Code: "guard_files", Message: "the arrival could not be noted: " + err.Error(), Change: "make room in " + h.Files.Dir + ", or start the agent"},
			})
		}
		return ExitAllow
	case AllowAndAdopt:
		// Best effort: a guest that nobody manages starts, whatever happens. What is
		// not noted is found by the agent's audit.
		if d.Err == nil && c.Operation == Start {
			if err := h.Files.NoteStarted(Started{Instance: d.UUID}); err != nil {
				fmt.Fprintf(h.Err, "berth: guest %s starts, and could not be noted for the agent: %v\n", c.Guest, err)
			}
		}
		return ExitAllow
	case Allow:
		if c.Operation == Start {
			// Best effort too: it ends by itself in begunFor.
			_ = h.Files.End(d.UUID)
		}
		return ExitAllow
	}
	return h.refuse(c, "", reasons)
}

func (h Hook) allow(c Call, document string) int {
	if c.Operation != Migrate || document == "" {
		return ExitAllow
	}
	if _, err := io.WriteString(h.Out, document); err != nil {
		// Half a document must not become the guest's.
		return h.refuse(c, "", []fault.Reason{{Code: "document", Message: "the guest's new document could not be handed to libvirt: " + err.Error()}})
	}
	return ExitAllow
}

// refuse tells every reason on standard error, which libvirt gives to whoever
// asked for the start or the migration.
func (h Hook) refuse(c Call, message string, reasons []fault.Reason) int {
	what := map[Operation]string{Migrate: "may not arrive"}[c.Operation]
	if what == "" {
		what = "may not start"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "berth: guest %s %s here", c.Guest, what)
	if len(reasons) == 0 && message != "" {
		b.WriteString(": " + message)
	}
	for i, r := range reasons {
		b.WriteString(map[bool]string{true: ": ", false: "; "}[i == 0] + r.Message)
		if r.Change != "" {
			b.WriteString(" (" + r.Change + ")")
		}
	}
	fmt.Fprintln(h.Err, b.String()) // nobody else to tell
	return ExitRefuse
}

// Document is what the guard reads of a guest's document.
type Document struct {
	UUID      string // lower case, with dashes; empty when it cannot be read
	Name      string
	Marked    bool   // Berth's metadata is in it: the guest is managed
	Migration string // the migration that the metadata names
	Err       error  // why it is not understood; Marked is right all the same
}

// ReadDocument reads a document as far as the guard needs it. One that is not
// understood is marked when Berth's namespace stands anywhere in it.
func ReadDocument(text string) Document {
	doc, err := domainxml.Parse(text)
	if err == nil {
		d := Document{UUID: doc.UUID(), Name: doc.Name()}
		meta, marked, err := doc.Metadata()
		// Metadata that makes no sense is Berth's all the same.
		d.Marked = marked || err != nil
		d.Migration = meta.Migration
		return d
	}
	d := Document{Marked: strings.Contains(text, domainxml.Namespace), Err: err}
	var loose struct {
		Name string `xml:"name"`
		UUID string `xml:"uuid"`
	}
	if xml.Unmarshal([]byte(text), &loose) == nil {
		d.Name, d.UUID = loose.Name, strings.ToLower(strings.TrimSpace(loose.UUID))
	}
	return d
}
