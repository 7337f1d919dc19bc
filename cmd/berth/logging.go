package main

import (
	"io"
	"log/slog"
	"os"

	"berth/internal/screen"
)

// newLogger writes lines for the journal: where systemd collects standard error
// it has a time of its own for each.
func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	v, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	return slog.New(newHandler(w, v)), nil
}

func newHandler(w io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.NewTextHandler(screen.Behind(w), o) // which quotes what would act on a terminal
}

func parseLevel(text string) (slog.Level, error) {
	var v slog.Level
	if err := v.UnmarshalText([]byte(text)); err != nil {
		return v, misused("log level %q: want debug, info, warn or error", text)
	}
	return v, nil
}
