package event

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
)

// written are events of many kinds, as agents write them.
func written(t testing.TB) (texts [][]byte) {
	t.Helper()
	fault, _ := OfUpdate(raised())
	plain, _ := OfUpdate(raised())
	plain.Subject = Subject{}
	activity, _ := OfActivity(released())
	pods := uint64(7)
	for _, e := range []Event{fault, plain, activity,
		{Type: NodeSnapshot, Time: fault.Time, Severity: "info", Data: Snapshot{AsOf: Sequence(3), Of: stream, Part: 1, End: true,
			Faults: []Fault{{Check: "a", Message: `quotes " and \ and ünicode`}}, Leftovers: []Activity{}, PodsEnded: &pods}},
		{Type: AgentAlive, Time: fault.Time, Severity: "info", Data: Agent{Version: "v1", Blind: []string{"dns"}}},
		{Type: AgentGap, Time: fault.Time, Severity: "warning", BootID: "b", Data: Gap{Ranges: []Range{{From: "1", To: "2"}}}},
	} {
		e.Cluster, e.Node, e.Stream, e.Sequence = "prod", "node-1.example", stream, 42
		text, err := e.write()
		if err != nil || text == nil {
			t.Fatalf("%s is not written without the SDK: %v", e.Type, err)
		}
		texts = append(texts, text)
	}
	return texts
}

func batchOf(texts ...[]byte) []byte {
	return append(append([]byte{'['}, bytes.Join(texts, []byte{','})...), ']')
}

// What agents write is read without the SDK, alone and together.
func TestReadWritten(t *testing.T) {
	texts := written(t)
	for _, text := range texts {
		sameAsDecode(t, batchOf(text), 1)
	}
	sameAsDecode(t, batchOf(texts...), len(texts))
}

func sameAsDecode(t *testing.T, batch []byte, want int) {
	t.Helper()
	events, ok := ReadWritten(batch)
	if !ok || len(events) != want {
		t.Fatalf("%d events of %d, %v: %s", len(events), want, ok, batch)
	}
	var texts []json.RawMessage
	if err := json.Unmarshal(batch, &texts); err != nil || len(texts) != len(events) {
		t.Fatalf("%d events of %d: %v: %s", len(events), len(texts), err, batch)
	}
	for i, e := range events {
		if one, ok := ReadOne(e.JSON); !ok || !cmp.Equal(one, e) {
			t.Errorf("alone, %v: %+v", ok, one)
		}
		decoded, err := Decode(texts[i])
		if err != nil {
			t.Fatalf("Decode refuses what ReadWritten accepts: %v: %s", err, texts[i])
		}
		if diff := cmp.Diff(decoded, e.Event); diff != "" {
			t.Errorf("%s: %s", texts[i], diff)
		}
		if e.Name != decoded.ID() || e.Source != decoded.source() {
			t.Errorf("%q of %q, not %q of %q", e.Name, e.Source, decoded.ID(), decoded.source())
		}
		var c cloudevents.Event
		if err := json.Unmarshal(texts[i], &c); err != nil {
			t.Fatal(err)
		}
		if canonical, err := json.Marshal(c); err != nil || string(canonical) != string(e.JSON) {
			t.Errorf("the SDK writes %s (%v), not %s", canonical, err, e.JSON)
		}
	}
}

// Anything else is for Decode.
func TestNotWritten(t *testing.T) {
	text := string(written(t)[0])
	for name, changed := range map[string]string{
		"another version":         strings.Replace(text, `"1.0"`, `"0.3"`, 1),
		"an unknown type":         strings.ReplaceAll(text, "fault.raised.v1", "fault.raised.v2"),
		"another schema":          strings.Replace(text, "schemas/fault.raised", "schemas/fault.cleared", 1),
		"another node":            strings.Replace(text, `"partitionkey":"node-1`, `"partitionkey":"node-2`, 1),
		"another sequence":        strings.Replace(text, `"sequence":"0000`, `"sequence":"1000`, 1),
		"no ULID":                 strings.ReplaceAll(text, stream, "8"+stream[1:]),
		"an unknown severity":     strings.Replace(text, `"severity":"fatal","stream"`, `"severity":"dire","stream"`, 1),
		"a time with a zone":      strings.Replace(text, `.000000005Z","data"`, `.000000005+00:00","data"`, 1),
		"a time with zeros":       strings.Replace(text, `.000000005Z","data"`, `.0000000050Z","data"`, 1),
		"a space":                 strings.Replace(text, `"data":{`, `"data":{ `, 1),
		"a space between":         strings.Replace(text, `,"source"`, `, "source"`, 1),
		"an escaped name":         strings.Replace(text, `/nodes/node-1`, `/nodes/n%6Fde-1`, 1),
		"an escaped name in both": strings.NewReplacer(`/nodes/node-1`, `/nodes/n%6Fde-1`, `key":"node-1`, `key":"n%6Fde-1`).Replace(text),
		"an escape":               strings.Replace(text, `"bootid":"boot`, `"bootid":"b\u006fot`, 1),
		"HTML":                    strings.Replace(text, "is read-only", "is <b>", 1),
		"a line separator":        strings.Replace(text, "is read-only", "is \u2028", 1),
		"an extension":            strings.Replace(text, `,"stream"`, `,"some":"thing","stream"`, 1),
		"broken data":             strings.Replace(text, `"check":`, `"check"`, 1),
		"data of other types":     strings.Replace(text, `"message":"`, `"oneShot":"`, 1),
		"deep data": strings.Replace(text, `"data":{`, `"data":{"a":`+strings.Repeat("[", 20)+strings.Repeat("]", 20)+",",
			1),
		"too large": strings.Replace(text, `is read-only`, strings.Repeat("x", MaxSize), 1),
		"nothing":   "",
	} {
		if changed == text {
			t.Errorf("%s: nothing is changed", name)
		}
		_, ok := ReadWritten(batchOf([]byte(changed)))
		if _, alone := ReadOne([]byte(changed)); ok || alone {
			t.Errorf("%s: it is read: %s", name, changed)
		}
	}
	for _, batch := range []string{"", "[", "[]", "[" + text, text, "[" + text + ",]", "[" + text + "]]", "[" + text + "] "} {
		if _, ok := ReadWritten([]byte(batch)); ok {
			t.Errorf("it is read: %s", batch)
		}
	}
}

// Faults are read without encoding/json, where it would say the same. What it would say otherwise, or refuse, is its to say.
func TestReadFault(t *testing.T) {
	e, _ := OfUpdate(raised())
	fault := e.Data.(Fault)
	some := fault
	some.Facts, some.ObservedAt, some.RaisedAt = nil, time.Time{}, time.Time{}
	all := fault
	all.Facts = map[string]string{"a": "", "b": "c"}
	all.OneShot, all.SuggestedAction, all.Part = true, "replace-hardware", "serial number 1"
	for _, f := range []Fault{fault, some, all} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := readFault(text)
		if diff := cmp.Diff(f, got); diff != "" || !ok {
			t.Errorf("%s: %v %s", text, ok, diff)
		}
		for i := range text {
			for _, b := range []byte("\"\\ {},:x\n\xff") {
				sameAsJSON(t, append(append(bytes.Clone(text[:i]), b), text[i:]...))
				sameAsJSON(t, append(append(bytes.Clone(text[:i]), b), text[i+1:]...))
			}
			sameAsJSON(t, append(bytes.Clone(text[:i]), text[i+1:]...))
			sameAsJSON(t, text[:i])
		}
	}
}

// sameAsJSON fails where readFault accepts what encoding/json does not read in the same way.
func sameAsJSON(t *testing.T, text []byte) {
	t.Helper()
	got, ok := readFault(text)
	if !ok {
		return
	}
	want, err := readData(FaultRaised, text)
	if diff := cmp.Diff(want, any(got)); diff != "" || err != nil {
		t.Errorf("%s: %v %s", text, err, diff)
	}
}

func FuzzReadFault(f *testing.F) {
	for _, text := range []string{`"facts":{"a":"b","c":"d"}`, `"observedAt":"2026-11-23T15:00:00.5Z"`,
		`"raisedAt":"2026-11-23T15:00:00+01:00","oneShot":true,"suggestedAction":"x","part":"y"`} {
		f.Add([]byte(`{"id":"a","check":"b","subject":{"kind":"c","name":"d","uid":""},"severity":"fatal","reason":"e",` +
			`"message":"f g",` + text + `}`))
	}
	f.Fuzz(sameAsJSON)
}

// What ReadWritten accepts, Decode accepts, and the SDK writes it as it is.
func FuzzReadWritten(f *testing.F) {
	for _, text := range written(f) {
		f.Add(batchOf(text))
	}
	f.Add(batchOf(written(f)...))
	f.Fuzz(func(t *testing.T, batch []byte) {
		if events, ok := ReadWritten(batch); ok {
			sameAsDecode(t, batch, len(events))
		}
	})
}
