package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	cetest "github.com/cloudevents/sdk-go/v2/test"
	"github.com/google/go-cmp/cmp"
)

const (
	minimal = `{"specversion":"1.0","id":"1","source":"urn:x","type":"t"`
	// oldVersion makes the SDK panic.
	oldVersion = `{"specversion":"0.3","datacontentencoding":"","id":"1","source":"/x","type":"t"}`
)

// The SDK's own samples, encoded by the SDK in both modes, are read as the same event in one spelling.
func TestConformance(t *testing.T) {
	for _, sample := range append(cetest.AllVersions(cetest.Events()), cetest.FullEvent(), cetest.MinEvent()) {
		sample = cetest.ConvertEventExtensionsToString(t, sample)
		if sample.SpecVersion() != cloudevents.CloudEventsVersionV1 {
			continue
		}
		text, err := json.Marshal(sample)
		must(t, err)
		structured, err := ReadEnvelope(text)
		must(t, err)
		var back cloudevents.Event
		must(t, json.Unmarshal(structured.JSON, &back))
		cetest.AssertEventEquals(t, sample, back)
		request, err := cehttp.NewHTTPRequestFromEvent(t.Context(), "http://localhost", sample)
		must(t, err)
		var body []byte
		if request.Body != nil {
			body, err = io.ReadAll(request.Body)
			must(t, err)
		}
		binary, err := ReadBinary(request.Header, body)
		must(t, err)
		if !bytes.Equal(binary.Data(), sample.Data()) {
			t.Errorf("binary: %q, not %q", binary.Data(), sample.Data())
		}
	}
}

// Data in binary mode comes back byte for byte, and JSON stays JSON.
func TestBinaryData(t *testing.T) {
	for _, test := range []struct{ media, body, member string }{
		{"application/json", `{"a": 1e400, "b":[12345678901234567890]}`, `{"a":1e400,"b":[12345678901234567890]}`},
		{"application/json; charset=utf-8", `"<é>"`, `"<é>"`},
		{"application/vnd.x+json", `[true]`, `[true]`},
		{"", `null`, `null`},
		{"text/plain", "<b>\n\"é\x01", `"<b>\n\"é\u0001"`},
		{"text/plain; charset=UTF-8", "x", `"x"`},
		{"application/soap+xml", "<a/>", `"<a/>"`},
		{"text/plain; charset=latin1", "\xe9", ""},
		{"text/plain", "\xe9", ""},
		{"application/json; charset=utf-16", "\x00[\x00]", ""},
		{"application/octet-stream", "plain", ""},
		{"image/png", "\x89PNG\x00\xff", ""},
		{"", "\x00\xff", ""},
	} {
		header := binaryHeader(nil)
		if test.media != "" {
			header.Set("Content-Type", test.media)
		}
		e, err := ReadBinary(header, []byte(test.body))
		must(t, err)
		same(t, e)
		want := `"data":` + test.member
		if test.member == "" {
			want = `"data_base64":"` + base64.StdEncoding.EncodeToString([]byte(test.body)) + `"`
		}
		if !strings.HasSuffix(string(e.JSON), want+"}") {
			t.Errorf("%q %q: %s, want %s", test.media, test.body, e.JSON, want)
		}
		back, sent, err := inBinary(e.JSON)
		if err != nil || test.member == "" && string(sent) != test.body || back.Get("Content-Type") != test.media {
			t.Errorf("sent on: %q %v, %v", sent, back, err)
		}
	}
}

// binaryHeader completes the headers of an event in binary mode.
func binaryHeader(header http.Header) http.Header {
	all := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"urn:x"}, "Ce-Type": {"t"}}
	maps.Copy(all, header)
	return all
}

// A foreign sender's event is the same in binary mode: attributes that are not texts, bytes, and data that is not JSON.
func TestBinaryOfForeign(t *testing.T) {
	for _, test := range []struct {
		rest, name, value, body string
	}{
		{`,"n":7,"b":true,"data":{"a":1}}`, "Ce-N", "7", `{"a":1}`},
		{`,"n":7,"b":true}`, "Ce-B", "true", ""},
		{`,"subject":"<é> \"%"}`, "Ce-Subject", "<%C3%A9>%20%22%25", ""},
		{`,"datacontenttype":"text/plain; charset=utf-8","data":"<b>\n"}`, "Content-Type", "text/plain; charset=utf-8", "<b>\n"},
		{`,"datacontenttype":"a/b+json","data":"x"}`, "Content-Type", "a/b+json", `"x"`},
		{`,"datacontenttype":"a/b","data":[1]}`, "Content-Type", "a/b", `[1]`},
		{`,"datacontenttype":"a/b","data_base64":"AP8="}`, "Content-Type", "a/b", "\x00\xff"},
	} {
		header, body, err := inBinary([]byte(minimal + test.rest))
		if err != nil || string(body) != test.body || header.Get(test.name) != test.value || header.Get("Ce-Id") != "1" {
			t.Errorf("%s: %v %q, %v", test.rest, header, body, err)
		}
	}
	if header, _, err := inBinary([]byte(`[]`)); err == nil {
		t.Errorf("a list: %v", header)
	}
}

// White space, order and escapes do not matter, and a null attribute is not set.
func TestSpellings(t *testing.T) {
	want := `{"id":"1","n":7,"source":"urn:x","specversion":"1.0","type":"t","y":true,"data_base64":"AP8="}`
	for _, text := range []string{
		want,
		` { "data_base64" : "AP8=" , "y":true, "type":"t","source":"urn:x","id":"1","specversion":"1.0", "n" : 7 } `,
		"{\"n\":7,\"y\":true,\n\"specversion\":\"1\\u002e0\",\"id\":\"\\u0031\",\"source\":\"urn:x\",\"type\":\"t\",\"subject\":null,\"data_base64\":\"AP8=\"}",
	} {
		e, err := ReadEnvelope([]byte(text))
		if diff := cmp.Diff(want, string(e.JSON)); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
}

// A text other than a CloudEvent, or not JSON for every parser, is refused with the reason.
func TestNoEnvelope(t *testing.T) {
	for text, want := range map[string]string{
		`,"data":1,"data_base64":"AP8="}`:    "exclude each other",
		`,"data_base64":"AP8"}`:              "base64",
		`,"data_base64":"AP\n8="}`:           "base64",
		`,"data_base64":7}`:                  "must be a string",
		`,"data":"` + "\xff" + `"}`:          "UTF-8",
		`,"data":"\ud800"}`:                  "surrogate",
		`,"data":{"a":1,"a":2}}`:             "twice",
		`,"id":"2"}`:                         "twice",
		`,"n":2147483648}`:                   "32 bits",
		`,"Upper":"x"}`:                      "Upper",
		`,"a_b":"x"}`:                        "a_b",
		`,"subject":""}`:                     "subject: must be a string that is not empty",
		`,"dataschema":"relative"}`:          "dataschema",
		`,"data":` + strings.Repeat("[", 40): "JSON",
		`}{}`:                                "more than one value",
		``:                                   "JSON",
		`,"data":NaN}`:                       "JSON",
		`,"data":[1 2]}`:                     "JSON",
		`,"data":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`: "deep",
	} {
		if e, err := ReadEnvelope([]byte(minimal + text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v %s; want %q", text, err, e.JSON, want)
		}
	}
	for _, text := range []string{`[]`, `null`, `7`, `{"id":"1","source":"urn:x","type":"t"}`, oldVersion,
		`{"specversion":"0.3","id":"1","source":"urn:x","type":"t"}`, `{"specversion":"1.0","id":"1","source":"urn:x"}`} {
		if e, err := ReadEnvelope([]byte(text)); err == nil {
			t.Errorf("%s: %s", text, e.JSON)
		}
	}
	for name, header := range map[string]http.Header{
		"no JSON": {"Content-Type": {"application/json"}}, "twice": {"Ce-A": {"1", "2"}}, "no UTF-8": {"Ce-A": {"\xff"}},
		"no attribute": {"Ce-Data": {"1"}}, "a media type beside": {"Ce-Datacontenttype": {"a/b"}},
		"no media type": {"Content-Type": {"/"}}, "old": {"Ce-Specversion": {"0.3"}, "Ce-Datacontentencoding": {""}},
	} {
		if e, err := ReadBinary(binaryHeader(header), []byte("{")); err == nil {
			t.Errorf("%s: %s", name, e.JSON)
		}
	}
}

// Half of a surrogate pair is refused anywhere, also beside a U+FFFD, which is a character like any other; whole pairs are
// kept as they were written.
func TestSurrogates(t *testing.T) {
	for text, valid := range map[string]bool{
		`"\ud83d\ude00"`: true, `"\uD83D\uDE00�"`: true, `"\ufffd �"`: true, `"\\ud800"`: true, `{"\ud83d\ude00":"\\\\"}`: true,
		`"\ud800 �"`: false, `"\udc00\ufffd"`: false, `"\ud800\ud800\udc00"`: false, `"\ud800\n"`: false, `"\\\ud800"`: false,
		`{"\ud800":"�"}`: false, `{"�":["\udfff"]}`: false, `"\ud83d\\ude00"`: false, `"\ud83dude00"`: false, `"\ud800"`: false,
	} {
		for _, media := range []string{"", "application/json", "text/plain"} {
			event := minimal + `,"data":` + text + `}`
			if media != "" {
				event = minimal + `,"datacontenttype":"` + media + `","data":` + text + `}`
			}
			e, err := ReadEnvelope([]byte(event))
			if valid != (err == nil) || err != nil && !strings.Contains(err.Error(), "half of a surrogate pair") {
				t.Errorf("%s: %v %s", event, err, e.JSON)
			}
			if err == nil && media != "text/plain" && !strings.HasSuffix(string(e.JSON), text+"}") {
				t.Errorf("%s became %s", event, e.JSON)
			}
		}
		header := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"urn:x"}, "Ce-Type": {"t"},
			"Content-Type": {"application/json"}}
		if e, err := ReadBinary(header, []byte(text)); valid != (err == nil) {
			t.Errorf("binary %s: %v %s", text, err, e.JSON)
		}
	}
}

// A sender in binary mode may not have encoded the percent signs of its source. The letters of a time may be small.
func TestSourceAndTime(t *testing.T) {
	header := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"a%20b"}, "Ce-Source": {"urn:a%20b"}, "Ce-Type": {"t"},
		"Ce-Time": {"2026-01-01t00:00:00.5z"}}
	e, err := ReadBinary(header, nil)
	if err != nil || e.Source() != "urn:a%20b" || e.ID() != "a b" || e.Time().Nanosecond() != 5e8 ||
		!strings.Contains(string(e.JSON), `"time":"2026-01-01T00:00:00.5Z"`) {
		t.Errorf("%v %s", err, e.JSON)
	}
}

// An attribute of the specification has a value of its kind, and an extension a simple one.
func TestRefusedAttributes(t *testing.T) {
	uris := []string{`"%zz"`, `"http://[::1"`, `"\u001b[31m"`, `"urn:x\u007f"`, `":"`, `"a b:c"`}
	all := map[string][]string{"datacontentencoding": nil, "schemaurl": nil,
		"extension": {`2147483648`, `-2147483649`, `[1]`, `{"a":1}`, `[null]`}}
	specified := map[string][]string{
		"specversion":     {`"0.3"`, `"1"`, `"1.0 "`, `" 1.0"`, `"2.0"`, `null`},
		"id":              {`" "`, `null`},
		"source":          append(uris, `null`),
		"type":            {`"\t"`, `null`},
		"subject":         {`" "`, `"\u00a0"`},
		"datacontenttype": {`" "`, `"/"`, `"a/"`, `"a/b;c"`, `"a/b; c=d; c=e"`, `"\u001b"`, `"a b"`},
		"dataschema": slices.Concat(uris, []string{`" "`, `"relative"`, `"/a"`, `"//host/a"`, `"?a"`, `"#a"`, `"1:a"`,
			`"é:a"`}),
		"time": {`" "`, `"2026-01-01"`, `"2026-13-01T00:00:00Z"`, `"2026-01-01T00:00:00"`},
	}
	for name, values := range specified {
		all[name] = append(values, `""`, `7`, `true`)
	}
	for name, values := range all {
		for _, value := range append(values, `1.5`, `1e2`, `[]`, `{}`) {
			if e, err := ReadEnvelope(with(t, []byte(minimal+"}"), name, value)); err == nil {
				t.Errorf("%s %s is accepted: %s", name, value, e.JSON)
			}
		}
	}
}

// with returns an event with another value of one member.
func with(t *testing.T, event []byte, name, value string) []byte {
	t.Helper()
	var members map[string]json.RawMessage
	must(t, json.Unmarshal(event, &members))
	members[name] = json.RawMessage(value)
	changed, err := json.Marshal(members)
	must(t, err)
	return changed
}

// Every accepted text is written in a form that a strict parser, the SDK and this package read as the same event.
func FuzzReadEnvelope(f *testing.F) {
	f.Add([]byte(oldVersion))
	f.Add([]byte(minimal + `,"dataschema":"%zz"}`))
	for _, rest := range []string{`}`, `,"data":"\u2028<"}`, `,"data_base64":"AP8=","a":1}`, `,"time":"2026-01-01T00:00:00Z","data":[]}`} {
		f.Add([]byte(minimal + rest))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if e, err := ReadEnvelope(text); err == nil {
			same(t, e)
		}
	})
}

// Any body with any media type comes back unchanged.
func FuzzReadBinary(f *testing.F) {
	f.Add("a", "application/json", []byte(`{}`))
	f.Add("ä\"%", "text/plain; charset=latin1", []byte("\xff"))
	f.Fuzz(func(t *testing.T, value, media string, body []byte) {
		header := binaryHeader(http.Header{"Ce-A": {value}, "Content-Type": {media}})
		e, err := ReadBinary(header, body)
		if err != nil {
			return
		}
		same(t, e)
		if _, sent, err := inBinary(e.JSON); err != nil || e.DataBase64 && !bytes.Equal(sent, body) {
			t.Errorf("%q is sent on as %q: %v", body, sent, err)
		}
	})
}

func same(t *testing.T, e Envelope) {
	t.Helper()
	if err := strictJSON(e.JSON); err != nil {
		t.Fatalf("%v: %s", err, e.JSON)
	}
	again, err := ReadEnvelope(e.JSON)
	if err != nil || !bytes.Equal(again.JSON, e.JSON) {
		t.Fatalf("%v: %s is read as %s", err, e.JSON, again.JSON)
	}
}
