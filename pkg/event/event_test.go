package event

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

const stream = "01JD5T8ZQ0000000000000000A"

func at(second int64) finding.Timestamp {
	return finding.Timestamp{Wall: time.Unix(second, 5).UTC(), Boot: "boot-1",
		SinceBoot: time.Duration(second) * time.Second}
}

// from gives an event a sender.
func from(e Event) Event {
	e.Cluster, e.Node, e.Stream, e.Sequence = "prod/eu 1", "node-1", stream, 42
	return e
}

func raised() finding.Update {
	return finding.Update{ID: "abc-raised", Kind: finding.Raised, At: at(30), First: at(10), Since: at(30),
		Finding: finding.Finding{Check: "filesystem-readonly", Subject: finding.Subject{Kind: "filesystem",
			Name: "/var/lib"},
			Severity: finding.Fatal, Reason: "FilesystemIsReadOnly", Message: "/var/lib is read-only",
			Facts: map[string]string{"device": "sda1"}, SuggestedAction: finding.SuggestReplaceHardware, Part: "disk sda"}}
}

func released() finding.Activity {
	pod := finding.Subject{Kind: "pod", Name: "default/web", UID: "u1"}
	a := finding.NewActivity(finding.ActionVerified, "leftovers", pod, at(50))
	a.Pod, a.Message = pod, "leftovers of pod default/web are released: 2 mount"
	return a
}

// The attributes and the data, as any receiver sees them.
func TestEncode(t *testing.T) {
	e, ok := OfUpdate(raised())
	if !ok {
		t.Fatal("no event of a finding that was raised")
	}
	data, err := from(e).Encode()
	must(t, err)
	var got map[string]any
	must(t, json.Unmarshal(data, &got))
	want := map[string]any{
		"specversion": "1.0", "type": "io.github.nodeagent.fault.raised.v1",
		"source": "/clusters/prod%2Feu%201/nodes/node-1", "id": stream + "-00000000000000000042",
		"subject":         "filesystem-readonly/FilesystemIsReadOnly/filesystem/%2Fvar%2Flib",
		"time":            "1970-01-01T00:00:30.000000005Z",
		"dataschema":      "https://nodeagent.github.io/schemas/fault.raised.v1.json",
		"datacontenttype": "application/json", "severity": "fatal", "bootid": "boot-1", "partitionkey": "node-1",
		"stream": stream, "sequence": "00000000000000000042",
		"data": map[string]any{
			"id": "abc-raised", "check": "filesystem-readonly", "severity": "fatal", "reason": "FilesystemIsReadOnly",
			"subject": map[string]any{"kind": "filesystem", "name": "/var/lib", "uid": ""},
			"message": "/var/lib is read-only", "facts": map[string]any{"device": "sda1"},
			"suggestedAction": "replace-hardware", "part": "disk sda",
			"observedAt": "1970-01-01T00:00:10.000000005Z", "raisedAt": "1970-01-01T00:00:30.000000005Z",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRoundTrip(t *testing.T) {
	for kind, data := range map[Type]any{
		NodeSnapshot: Snapshot{AsOf: Sequence(41), Part: 1, End: true, Faults: []Fault{{ID: "a"}},
			Leftovers: []Activity{{ID: "b"}}},
		AgentAlive: Agent{Version: "1", Configuration: "c", LastSequence: Sequence(41),
			Blind: []string{"dns"}},
		AgentGap:                             Gap{[]Range{{"", Sequence(1), Sequence(41), "dropped"}}},
		"io.github.nodeagent.of.tomorrow.v2": json.RawMessage(`{"a":[1,2]}`),
	} {
		roundTrip(t, from(Event{Type: kind, Time: at(1).Wall, Severity: finding.Info, Data: data}))
	}
}

func roundTrip(t *testing.T, e Event) {
	t.Helper()
	data, err := e.Encode()
	must(t, err)
	got, err := Decode(data)
	if diff := cmp.Diff(e, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// Every kind of update and activity has its type, or deliberately none.
func TestConversions(t *testing.T) {
	converted := func(kind any, e Event, ok bool, want string) {
		t.Helper()
		if ok {
			roundTrip(t, from(e))
		}
		if got := strings.TrimPrefix(string(e.Type), typePrefix); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v, want %q", kind, got, ok, want)
		}
	}
	for kind, want := range map[finding.UpdateKind]string{finding.Raised: "fault.raised.v1",
		finding.Changed: "fault.updated.v1", finding.Cleared: "fault.cleared.v1", finding.StatusChanged: ""} {
		u := raised()
		u.Kind = kind
		e, ok := OfUpdate(u)
		converted(kind, e, ok, want)
	}
	for kind, want := range map[finding.ActivityKind]string{
		finding.LeftoverFound: "leftover.found.v1", finding.LeftoverPresent: "leftover.found.v1",
		finding.LeftoverReleased: "leftover.released.v1", finding.LeftoverGone: "leftover.gone.v1",
		finding.ActionPlanned: "action.planned.v1", finding.ActionRefused: "action.refused.v1",
		finding.ActionStarted: "action.started.v1", finding.ActionDone: "action.succeeded.v1",
		finding.ActionVerified: "action.succeeded.v1", finding.ActionFailed: "action.failed.v1", "of-tomorrow": "",
	} {
		a := released()
		a.Kind = kind
		e, ok := OfActivity(a)
		converted(kind, e, ok, want)
	}
	e, _ := OfActivity(released())
	if diff := cmp.Diff(Subject{"leftovers", "ActionVerified", "pod", "default/web"}, e.Subject); diff != "" {
		t.Error(diff)
	}
}

// An event that an agent would not have written exactly so is refused with the reason.
func TestRefused(t *testing.T) {
	e, _ := OfUpdate(raised())
	valid, err := from(e).Encode()
	must(t, err)
	for _, test := range []struct{ attribute, value, want string }{
		{"specversion", `"0.3"`, "specversion"},
		{"type", `"com.example.thing"`, "type"},
		{"source", `"/nodes/node-1"`, "source"},
		{"source", `"/clusters/prod%2feu%201/nodes/node-1"`, "source"}, // in another spelling
		{"source", `"/clusters/prod/nodes/"`, "want /clusters/CLUSTER/nodes/NODE"},
		{"id", `"` + stream + `-00000000000000000043"`, "id"},
		{"sequence", `42`, "sequence"},
		{"sequence", `"42"`, "sequence"},
		{"sequence", `"00000000000000000000"`, "sequence"},
		{"stream", `"one"`, "stream"},
		{"severity", `"bad"`, "severity"},
		{"partitionkey", `"node-2"`, "partitionkey"},
		{"subject", `"a/b/c"`, "subject"},
		{"dataschema", `"https://example.com/"`, "dataschema"},
		{"data", `{"id": 1}`, "data"},
		{"datacontenttype", `"text/plain"`, "datacontenttype"},
		{"data", `"` + strings.Repeat("x", MaxSize) + `"`, "bytes"},
		{"time", `null`, "time"},
	} {
		_, err := Decode(with(t, valid, test.attribute, test.value))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s %.60s: %v, want %q", test.attribute, test.value, err, test.want)
		}
	}
	for _, text := range []string{"", "null", "[]", string(valid) + "{}", string(valid[:len(valid)-1])} {
		if e, err := Decode([]byte(text)); err == nil {
			t.Errorf("%.40q is taken for %+v", text, e)
		}
	}
	for name, change := range map[string]func(*Event){
		"no stream": func(e *Event) { e.Stream = "" }, "no sequence": func(e *Event) { e.Sequence = 0 },
		"no cluster": func(e *Event) { e.Cluster = "" }, "no time": func(e *Event) { e.Time = time.Time{} },
		"data that cannot be encoded": func(e *Event) { e.Data = func() {} },
		"too large":                   func(e *Event) { e.Data = strings.Repeat("x", MaxSize) },
	} {
		broken := from(e)
		change(&broken)
		if data, err := broken.Encode(); err == nil {
			t.Errorf("%s: encoded as %s", name, data)
		}
	}
}

func FuzzDecode(f *testing.F) {
	update, _ := OfUpdate(raised())
	activity, _ := OfActivity(released())
	for _, e := range []Event{update, activity, {Type: AgentGap, Time: at(1).Wall, Severity: finding.Info,
		Data: Gap{}}} {
		data, err := from(e).Encode()
		must(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Decode(data)
		if err != nil || len(data) > MaxSize/8 { // escaping makes a text up to six times longer
			return
		}
		roundTrip(t, e)
	})
}

// The event of any finding can be sent, and is the same after it was received.
func FuzzOfUpdate(f *testing.F) {
	f.Add("check", "Reason", "kind", "name", "uid", "message", "key", "value")
	long := strings.Repeat("<\x00é\xff", MaxSize)
	f.Add(long, long, long, long, long, long, long, long)
	f.Fuzz(func(t *testing.T, check, reason, kind, name, uid, message, key, value string) {
		u := raised()
		u.Finding = finding.Finding{Check: check, Subject: finding.Subject{Kind: kind, Name: name, UID: uid},
			Severity: finding.Warning, Reason: reason, Message: message, Facts: map[string]string{key: value, "a": "b"}}
		e, _ := OfUpdate(u)
		roundTrip(t, from(e))
		a := released()
		a.Subject, a.Pod, a.Message, a.Check = u.Finding.Subject, u.Finding.Subject, message, check
		e, _ = OfActivity(a)
		roundTrip(t, from(e))
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "30": 30 * time.Second, "-5": 0, "86400": time.Hour, "soon": 0,
		"Sun, 01 Mar 2026 12:02:00 GMT": 2 * time.Minute, "Sun, 01 Mar 2026 11:00:00 GMT": 0,
		"Mon, 02 Mar 2026 12:00:00 GMT": time.Hour,
	} {
		if got := RetryAfter(http.Header{"Retry-After": {value}}, now); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"disk sda: Lesefehler, 読み取りエラー": "disk sda: Lesefehler, 読み取りエラー",
		"two\nlines\x1b[31m":            "two?lines?[31m",
		"abc\u202edef\u200b":            "abc?def?",
		"no \xff UTF-8":                 "no ? UTF-8",
	} {
		if got := Plain(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestBrief(t *testing.T) {
	for text, want := range map[string]string{
		" two\nlines\x1b ":  "two lines",
		"a\u202eb\xff":      "a b�",
		"12345678é":         "12345678",
		"1234567é and more": "1234567é",
	} {
		if got := Brief(text, 9); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
