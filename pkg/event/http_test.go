package event

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A foreign sender's event is the same in binary mode: attributes that are not texts, bytes, and data that is not JSON.
func TestBinaryOfForeign(t *testing.T) {
	for text, want := range map[string]struct {
		header http.Header
		body   string
	}{
		`{"id":"1","n":7,"b":true,"data":{"a":1}}`: {http.Header{"Ce-Id": {"1"}, "Ce-N": {"7"}, "Ce-B": {"true"}}, `{"a":1}`},
		`{"datacontenttype":"text/plain; charset=utf-8","data":"<b>\n"}`: {
			http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, "<b>\n"},
		`{"datacontenttype":"a/b+json","data":"x"}`:                           {http.Header{"Content-Type": {"a/b+json"}}, `"x"`},
		`{"datacontenttype":"application/octet-stream","data_base64":"AP8="}`: {http.Header{"Content-Type": {"application/octet-stream"}}, "\x00\xff"},
	} {
		header, body, err := inBinary([]byte(text))
		if err != nil || string(body) != want.body {
			t.Errorf("%s: %q, %v", text, body, err)
		}
		if diff := cmp.Diff(want.header, header); diff != "" {
			t.Errorf("%s\n%s", text, diff)
		}
	}
	for _, text := range []string{`{"a":{}}`, `{"a":null}`, `[]`, `{"data_base64":"?"}`} {
		if header, _, err := inBinary([]byte(text)); err == nil {
			t.Errorf("%s: %v", text, header)
		}
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
