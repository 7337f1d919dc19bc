package embedded

import (
	"net/http"

	"berth/internal/fault"
)

// answerError is a fault as it travels. A store's faults have no reasons beside their message.
type answerError struct {
	Kind    fault.Kind `json:"kind"`
	Message string     `json:"message"`
}

func statusOf(kind fault.Kind) int {
	switch kind {
	case fault.NotFound:
		return http.StatusNotFound
	case fault.GenerationConflict, fault.Busy, fault.Exists:
		return http.StatusConflict
	case fault.Invalid:
		return http.StatusBadRequest
	case fault.Forbidden:
		return http.StatusForbidden
	case fault.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
