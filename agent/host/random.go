package host

import (
	"github.com/google/uuid"
)

// newUUID is a random uuid of the host's own chance (Options.Random).
func (h *Host) newUUID() string {
	if h.o.Random != nil {
		if id, err := uuid.NewRandomFromReader(h.o.Random); err == nil {
			return id.String()
		}
	}
	return uuid.NewString()
}
