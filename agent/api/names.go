package api

import (
	"net/http"
	"strings"

	"berth/internal/fault"
)

// longestName is the longest name of a guest, host, flavor or migration that is looked up,
// in bytes: no file and no provider can be called longer. Errors and logs say names whole.
const longestName = 255

// longestPath is above that of every route with names of that length. In bytes.
const longestPath = 1024

// tooLong refuses names that nothing can have, without saying them.
func tooLong(names ...string) error {
	for _, n := range names {
		if len(n) > longestName {
			return fault.New(fault.Invalid, "a name of %d bytes: nothing is called longer than %d (it begins with %q)", len(n), longestName, n[:32])
		}
	}
	return nil
}

// boundedPath is tooLong of what a request names in its path, and of the host that is to
// answer.
func boundedPath(r *http.Request) error {
	if len(r.URL.Path) > longestPath {
		return fault.New(fault.Invalid, "a path of %d bytes: none is longer than %d", len(r.URL.Path), longestPath)
	}
	return tooLong(append(strings.Split(r.URL.Path, "/"), r.URL.Query().Get("host"))...)
}
