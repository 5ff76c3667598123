package event

import (
	"net/http"
	"testing"
	"time"
)

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
