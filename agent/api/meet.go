package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"berth/internal/fault"
)

// Meeting is what one agent sees of another beside its answer.
type Meeting struct {
	Status Status
	// Ahead is by how much the other's clock is ahead of this one's at least, below 0 for
	// behind; 0 where they may be equal, which is as near as the answer's date (whole
	// seconds) and the time that it took can tell.
	Ahead time.Duration
	// Ends is when the other's certificate does; zero over a unix socket.
	Ends time.Time
}

// Meet asks the agent how it is, and looks at its clock and its certificate.
func (c *Client) Meet(ctx context.Context) (Meeting, error) {
	var out Meeting
	asked := c.rt.Now()
	resp, err := c.open(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	answered := c.rt.Now()
	data, err := readAll(resp, MaxBody)
	switch {
	case err != nil:
		return out, c.connectError(err)
	case resp.StatusCode >= 300:
		return out, decodeError(resp.StatusCode, data)
	}
	if err := json.Unmarshal(data, &out.Status); err != nil {
		return out, fault.New(fault.Internal, "ask the agent at %s: read its answer: %w", c.where(), err)
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		out.Ahead = ahead(asked, answered, date)
	}
	if resp.TLS != nil && len(resp.TLS.PeerCertificates) > 0 {
		out.Ends = resp.TLS.PeerCertificates[0].NotAfter
	}
	return out, nil
}

// ahead is by how much a clock is ahead at least that showed date, cut to the second, at some
// time between asked and answered.
func ahead(asked, answered, date time.Time) time.Duration {
	least, most := date.Sub(answered), date.Add(time.Second).Sub(asked)
	switch {
	case least > 0:
		return least
	case most < 0:
		return most
	}
	return 0
}
