package event

import "slices"

// maxPast limits the streams of earlier starts: each start of an agent begins a new one.
const maxPast = 64

// Streams are those of a node's agent.
type Streams struct {
	Stream string   `json:"stream,omitempty"` // the agent's present outbox
	Past   []string `json:"past,omitempty"`
}

// Current reports whether a stream is the agent's present outbox. An unknown stream becomes it, if it began later (a
// ULID begins with the time): the agent was restarted. Events from an earlier start may arrive after the new one's. now
// means that the stream is a running agent's: the clock of a reinstalled node may be behind.
func (s *Streams) Current(stream string, now bool) (current, began bool) {
	if stream == s.Stream {
		return true, false
	}
	if slices.Contains(s.Past, stream) || stream < s.Stream && !now {
		return false, false
	}
	if s.Stream != "" {
		past := append(slices.Clone(s.Past), s.Stream) // copies of s keep theirs
		s.Past = past[max(0, len(past)-maxPast):]
	}
	s.Stream = stream
	return true, true
}
