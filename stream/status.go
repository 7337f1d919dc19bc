package stream

import "time"

// Status is what a process says of itself.
type Status struct {
	ID
	Instance string `json:"instance"`
	Role     Role   `json:"role"`
	Peer     string `json:"peer"`
	// Version is the berth that the process was started from, which need not be
	// the agent's.
	Version string `json:"version"`
	PID     int    `json:"pid"`
	// Port is where the destination's process listens; 0 on a source.
	Port int `json:"port,omitempty"`
	// Age is how long it runs.
	Age time.Duration `json:"age_ns"`
	// Lease is what is left of it, 0 when it is over. While Open is above 0 it
	// does not matter.
	Lease time.Duration `json:"lease_ns"`
	// PostCopy: half of a guest is behind it, and its lease does not matter either.
	PostCopy bool `json:"post_copy,omitempty"`
	// Open is how many connections are open, of all channels: above 0 the claim
	// of this migration must be kept.
	Open int `json:"open"`
	// Idle is how long ago the last byte was forwarded, or since the start.
	Idle time.Duration `json:"idle_ns"`
	// Silent is for how long the peer's machine has acknowledged nothing, on the connection of
	// memory on which it is the longest; 0 without one, and where the kernel does not say. What
	// was forwarded may lie here all that time.
	Silent   time.Duration   `json:"silent_ns,omitempty"`
	Channels []ChannelStatus `json:"channels"`
	// Refused counts connections that were let nothing: strangers' and those whose
	// target did not answer. LastRefusal is why the last was.
	Refused     int    `json:"refused,omitempty"`
	LastRefusal string `json:"last_refusal,omitempty"`
	// Certificate is until when the certificate in use is good; CertificateError
	// why newer files are not used.
	Certificate      time.Time `json:"certificate_not_after"`
	CertificateError string    `json:"certificate_error,omitempty"`
	// OrderDigest tells whether it was started by an order that is at hand.
	OrderDigest string `json:"order_digest"`
}

// ChannelStatus counts one channel.
type ChannelStatus struct {
	Channel Channel `json:"channel"`
	Open    int     `json:"open"`
	Total   int     `json:"total"` // connections so far
	// Sent and Received are bytes to and from the network, without TLS's own.
	Sent     uint64 `json:"sent_bytes"`
	Received uint64 `json:"received_bytes"`
}

// Of gives one channel's counts.
func (s Status) Of(c Channel) ChannelStatus {
	for _, ch := range s.Channels {
		if ch.Channel == c {
			return ch
		}
	}
	return ChannelStatus{Channel: c}
}
