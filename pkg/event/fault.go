package event

import (
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// readFault reads the data of fault.* where it is as agents write it, and its texts are plain ASCII without an escape.
// Anything else is not ok, and is for encoding/json, which says the same of what is ok and takes five times as long.
func readFault(data []byte) (f Fault, ok bool) {
	m := members{rest: string(data), ok: true}
	m.skip(`{"id":`)
	f.ID = m.text()
	m.skip(`,"check":`)
	f.Check = m.text()
	m.skip(`,"subject":{"kind":`)
	f.Subject.Kind = m.text()
	m.skip(`,"name":`)
	f.Subject.Name = m.text()
	m.skip(`,"uid":`)
	f.Subject.UID = m.text()
	m.skip(`},"severity":`)
	f.Severity = finding.Severity(m.text())
	m.skip(`,"reason":`)
	f.Reason = m.text()
	m.skip(`,"message":`)
	f.Message = m.text()
	if m.next(`,"facts":{`) {
		f.Facts = m.facts()
	}
	if m.next(`,"observedAt":`) {
		f.ObservedAt = m.time()
	}
	if m.next(`,"raisedAt":`) {
		f.RaisedAt = m.time()
	}
	f.OneShot = m.next(`,"oneShot":true`)
	if m.next(`,"suggestedAction":`) {
		f.SuggestedAction = finding.SuggestedAction(m.text())
	}
	if m.next(`,"part":`) {
		f.Part = m.text()
	}
	m.skip(`}`)
	return f, m.ok && m.rest == ""
}

// members is at a place in a JSON object. Once something is not as expected, ok is false for good.
type members struct {
	rest string
	ok   bool
}

// skip goes beyond what must come next.
func (m *members) skip(want string) { m.ok = m.next(want) && m.ok }

// next goes beyond what may come next, and reports whether it did.
func (m *members) next(want string) (found bool) {
	m.rest, found = strings.CutPrefix(m.rest, want)
	return found
}

// text goes beyond a string.
func (m *members) text() string {
	m.skip(`"`)
	end := strings.IndexByte(m.rest, '"')
	if !m.ok || end < 0 {
		m.ok = false
		return ""
	}
	value := m.rest[:end]
	for i := range len(value) {
		if b := value[i]; b < ' ' || b >= 0x7f || b == '\\' {
			m.ok = false
		}
	}
	m.rest = m.rest[end+1:]
	return value
}

// time goes beyond a time.
func (m *members) time() (at time.Time) {
	begin := m.rest
	m.text()
	if m.ok {
		m.ok = at.UnmarshalJSON([]byte(begin[:len(begin)-len(m.rest)])) == nil
	}
	return at
}

// facts goes beyond the rest of an object of strings.
func (m *members) facts() map[string]string {
	all := map[string]string{}
	for m.ok {
		key := m.text()
		m.skip(`:`)
		all[key] = m.text()
		if !m.next(`,`) {
			break
		}
	}
	m.skip(`}`)
	return all
}
