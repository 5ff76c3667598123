package systemd

import (
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// set takes one property, as org.freedesktop.DBus.Properties.Get answers it.
func (u *Unit) set(property string, m busMessage) error {
	if m.signature != "v" {
		return fmt.Errorf("of type %q", hosterr.Clip(m.signature))
	}
	r := m.body
	if kind, want := r.signature(), propertyKind(property); r.err == nil && kind != want {
		return fmt.Errorf("of type %q, want %q", hosterr.Clip(kind), want)
	}
	switch property {
	case "StateChangeTimestamp": // microseconds since 1970; 0: never
		if since := r.long(); since > 0 && since < 1<<62 {
			u.Since = time.UnixMicro(int64(since)).UTC() //nolint:gosec // bounded
		}
	case "Transient":
		u.Transient = r.number() == 1
	case "TriggeredBy":
		for end := r.end(4); r.err == nil && r.at < end && len(u.TriggeredBy) < maxTriggers; {
			u.TriggeredBy = append(u.TriggeredBy, hosterr.Clip(r.text()))
		}
	case "Result":
		u.Result = hosterr.Clip(r.text())
	case "ExecMainCode":
		u.Code = int32(r.number()) //nolint:gosec // it is one
	case "ExecMainStatus":
		u.Status = int32(r.number()) //nolint:gosec // it is one
	case "NRestarts":
		u.Restarts = r.number()
	}
	return r.err
}

// maxTriggers bounds what is kept of one unit.
const maxTriggers = 10

// propertyKind returns the type of a property that is asked for.
func propertyKind(name string) string {
	switch name {
	case "StateChangeTimestamp":
		return "t"
	case "Transient":
		return "b"
	case "TriggeredBy":
		return "as"
	case "Result":
		return "s"
	case "ExecMainCode", "ExecMainStatus":
		return "i"
	}
	return "u"
}
