package pages

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/event"

	"github.com/nodeagent/nodeagent/pkg/web"
)

// A reader sees no forms and can change no state; a session from before operators existed is a reader's too.
func TestReaderChangesNothing(t *testing.T) {
	c := newCenter(t)
	c.send("node-0", event.FaultRaised, c.fault("node-0", "/data"))
	for _, operator := range []bool{false, true} {
		code, _, err := c.sessions.Code(t.Context(), web.Person{Name: "ada", Operator: operator})
		must(t, err)
		c.do("/login", url.Values{"code": {code}})
		form := formOf(c.page("/"))
		for _, page := range []string{"/nodes/prod/node-0", "/faults/filesystem-readonly"} {
			if got := strings.Contains(c.page(page), `<form class="say"`); got != operator {
				t.Errorf("operator %t: %s has a form: %t", operator, page, got)
			}
		}
		want := map[bool]int{false: http.StatusForbidden, true: http.StatusSeeOther}[operator]
		for path, values := range map[string]url.Values{
			"/say":         {"what": {"mute"}, "for": {"1h"}, "check": {"filesystem-readonly"}},
			"/maintenance": {"cluster": {"prod"}, "node": {"node-0"}, "for": {"1h"}},
		} {
			before := c.Journal.Bounds().Newest
			values.Set("form", form)
			answer, _ := c.do(path, values)
			if answer.status != want || c.Journal.Bounds().Newest > before != operator {
				t.Errorf("operator %t: %s: %d, want %d", operator, path, answer.status, want)
			}
		}
	}
}
