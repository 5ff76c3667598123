package expression

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/expecttest"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

func record(data string) journal.Record {
	return journal.Record{Offset: 1, Event: journal.Event{Type: "io.github.nodeagent.fault.raised.v1", Source: "/s",
		Cluster: "prod", Node: "a1", Severity: "fatal", Check: "nvme-health", Reason: "NVMeDead",
		JSON: fmt.Appendf(nil, `{"subject":"x/y","bootid":"b","data":%s}`, data)}}
}

func TestMatches(t *testing.T) {
	const data = `{"facts":{"device":"sda","n":"3"},"list":[1,2,3],"message":"it fails"}`
	for text, want := range map[string]bool{
		`severity == "fatal" && check.startsWith("nvme")`:       true,
		`type.endsWith("fault.raised.v1") && node == "a1"`:      true,
		`cluster == "test" || reason == "NVMeDead"`:             true,
		`data.facts.device == "sda"`:                            true,
		`data.facts.absent == "sda"`:                            false,
		`data.absent.absent == "sda" || severity == "fatal"`:    true,
		`has(data.facts.absent)`:                                false,
		`data.list.exists(x, x == 2)`:                           true,
		`data.message.matches("^it")`:                           true,
		`event.bootid == "b" && subject == "x/y"`:               true,
		`node in ["a2", "a3"]`:                                  false,
		`data.facts.device in ["sdb", "sda"] && source == "/s"`: true,
	} {
		x, err := Compile(text)
		expecttest.OK(t, err)
		if got, err := x.Matches(record(data)); got != want || err != nil {
			t.Errorf("%s: %t, %v", text, got, err)
		}
	}
	for _, text := range []string{`data.list`, `data.list == data.list && data.facts > 3`} { // neither true nor false
		x, err := Compile(text)
		expecttest.OK(t, err)
		if got, err := x.Matches(record(data)); got || err == nil {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// An invalid expression, or one that could cost too much for any event, is refused before use.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                   "no expression",
		`severity = "fatal"`: "no expression",
		`severety == "x"`:    "undeclared reference",
		`severity`:           "type string, want bool",
		`1 + 1`:              "want bool",
		`data.a.all(x, data.b.all(y, data.c.exists(z, z == x + y)))`:                 "too costly",
		`data.a.all(x, data.b.exists(y, x == y))`:                                    "too costly",
		`event.all(k, event.all(l, k == l))`:                                         "too costly",
		`severity == "` + strings.Repeat("x", maxText) + `"`:                         "4096 are possible",
		`[1,2,3,4,5,6,7,8,9].map(x, data.a.map(y, data.b.map(z, x))).size() > 10000`: "too costly",
	} {
		if _, err := Compile(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80s: %v, want %s", text, err, want)
		}
	}
}

// The limit applies even if an event is larger than the estimate assumes.
func TestLimit(t *testing.T) {
	x, err := Compile(`data.all(x, x.contains("b") || true)`)
	expecttest.OK(t, err)
	many := "[" + strings.Repeat(`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",`, 40_000) + `"a"]`
	if _, err := x.Matches(record(many)); err == nil || !strings.Contains(err.Error(), "cost limit") {
		t.Errorf("%v, want that the limit is exceeded", err)
	}
	if got, err := x.Matches(record(`["a"]`)); !got || err != nil {
		t.Error(got, err)
	}
}

func FuzzCompile(f *testing.F) {
	f.Add(`data.a.exists(x, x == "b")`, `{"a":["b"]}`)
	f.Add(`event.all(k, k != "")`, `1e400`)
	f.Fuzz(func(_ *testing.T, text, data string) {
		if x, err := Compile(text); err == nil {
			_, _ = x.Matches(record(data)) // neither panics nor runs for ever
		}
	})
}
