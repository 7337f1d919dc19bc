package api

import (
	"context"
	"net/http"

	"berth/agent/host/fileusers"
	"berth/internal/fault"
)

// FileQuestion asks a host which files its instances use: those that the asker is about to
// remove from storage which several hosts see.
type FileQuestion struct {
	// Instance is whose files they are; it does not count as a user.
	Instance string               `json:"instance_uuid"`
	Files    []fileusers.Question `json:"files"`
}

// FileAnswer has a reply for each file.
type FileAnswer struct {
	Files []fileusers.Reply `json:"files"`
}

// maxFiles bounds one question: more than an instance has disks.
const maxFiles = 64

func fileRows() []route {
	return []route{
		withTimeout(slow, write(http.MethodPost, "/v1/files/users", "file-users", "Which instances of this host use files that another host is about to remove; changes nothing.", hostsOnly|callerOperator,
			func(s *Server, r *http.Request, in FileQuestion) (FileAnswer, error) {
				if len(in.Files) > maxFiles {
					return FileAnswer{}, fault.New(fault.Invalid, "say who uses %d files: at most %d at once", len(in.Files), maxFiles)
				}
				files, err := s.svc.Agent.FilesUsed(r.Context(), in)
				return FileAnswer{Files: files}, err
			})),
	}
}

// FilesUsed asks which instances of the host use files.
func (c *Client) FilesUsed(ctx context.Context, q FileQuestion) ([]fileusers.Reply, error) {
	var out FileAnswer
	err := c.do(ctx, http.MethodPost, "/v1/files/users", q, &out, repeatable)
	return out.Files, err
}
