package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"berth/agent/api"
)

// auditLog keeps who asked this host for which change: in a file of JSON lines, or in the
// journal. A guest or a move is never held up for it: a line that the file does not take goes
// to the journal, and berth status says so.
//
// A line is written and not synced, so that a host which loses its power may lose the last
// ones. What a request began has its own durable record, with whose word it was.
type auditLog struct {
	path   string // empty for the journal
	log    *slog.Logger
	faults *faults

	// mu guards file and torn, over one write.
	mu   sync.Mutex
	file *os.File // nil before the first line
	torn bool     // the last line is not whole
}

func newAuditLog(a *Agent) *auditLog {
	return &auditLog{path: a.config().Agent.AuditLog, log: a.log, faults: &a.faults}
}

// open has a file that cannot be written told at the start, and not at the first request.
func (l *auditLog) open() {
	if l.path == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults.note(partAuditLog, l.ready())
}

// ready opens the file, anew where its name is another file's by now or nobody's: whoever
// rotates logs moves it away and need tell nobody. Its folder is not made.
func (l *auditLog) ready() error {
	if l.file != nil {
		named, err := os.Stat(l.path)
		if err == nil {
			var held os.FileInfo
			if held, err = l.file.Stat(); err == nil && os.SameFile(named, held) {
				return nil
			}
		}
		_ = l.file.Close() // every line is in it already
		l.file, l.torn = nil, false
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	l.file = f
	return nil
}

// write keeps one line.
func (l *auditLog) write(e api.AuditEntry) {
	if l.path == "" {
		l.tell(e)
		return
	}
	err := l.append(e)
	if err != nil {
		l.tell(e)
	}
	l.faults.note(partAuditLog, err)
}

func (l *auditLog) append(e api.AuditEntry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ready(); err != nil {
		return err
	}
	line = append(line, '\n')
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.file.Write(line)
	if err != nil {
		l.torn = l.torn || n > 0
		return fmt.Errorf("write the audit log: %w", err)
	}
	l.torn = false
	return nil
}

// tell gives a line to the journal, whatever log_level is.
func (l *auditLog) tell(e api.AuditEntry) {
	r := slog.NewRecord(e.At, slog.LevelInfo, "audit", 0)
	r.AddAttrs(slog.String("by", e.By), slog.String("do", e.Do), slog.Any("on", e.On), slog.String("result", e.Result), slog.Int("status", e.Status))
	for _, more := range []struct{ key, value string }{
		{"certificate", e.Cert}, {"from", e.From}, {"for", e.For}, {"to", e.To}, {"kind", e.Kind}, {"error", e.Error}, {"request", e.Request},
	} {
		if more.value != "" {
			r.AddAttrs(slog.String(more.key, more.value))
		}
	}
	if e.UID != nil {
		r.AddAttrs(slog.Uint64("uid", uint64(*e.UID)))
	}
	// A journal that takes no line takes no word of that either.
	_ = l.log.Handler().Handle(context.Background(), r)
}

// close ends the file. Lines that come after it open it again.
func (l *auditLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
