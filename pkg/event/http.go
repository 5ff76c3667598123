package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The media types of the HTTP protocol binding of CloudEvents 1.0: one event, and many of them as a JSON array.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// inBinary returns an encoded event in the binary mode of the HTTP protocol binding: attributes as headers, and the data
// as the body.
func inBinary(encoded []byte) (http.Header, []byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &members); err != nil {
		return nil, nil, fmt.Errorf("event: %w", err)
	}
	headers := http.Header{}
	for name, value := range members {
		if name == "data" || name == "data_base64" {
			continue
		}
		text, err := attribute(value)
		if err != nil {
			return nil, nil, fmt.Errorf("event: attribute %s: %w", name, err)
		}
		if name == "datacontenttype" {
			headers.Set("Content-Type", text)
		} else {
			headers.Set("Ce-"+name, headerValue(text))
		}
	}
	body, err := payload(members, headers.Get("Content-Type"))
	return headers, body, err
}

// attribute returns the text of an attribute, which other senders may encode as a number or a bool.
func attribute(value json.RawMessage) (text string, err error) {
	switch value[0] {
	case '"':
		err = json.Unmarshal(value, &text)
		return text, err
	case '{', '[', 'n':
		return "", fmt.Errorf("%.20s is no attribute", value)
	}
	return string(value), nil
}

// payload returns the data without its JSON format: base64 is decoded, and a text whose media type is not JSON is
// unquoted.
func payload(members map[string]json.RawMessage, media string) (body []byte, err error) {
	if encoded, ok := members["data_base64"]; ok {
		err = json.Unmarshal(encoded, &body) // json decodes base64 into bytes
		return body, err
	}
	data := members["data"]
	if isJSON(mediaOf(media)) || !bytes.HasPrefix(data, []byte{'"'}) {
		return data, nil
	}
	var text string
	err = json.Unmarshal(data, &text)
	return []byte(text), err
}

// headerValue encodes non-printable and non-ASCII characters, space, quotation mark and percent sign (binding, section
// 3.1.3.2).
func headerValue(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c > ' ' && c < 0x7f && c != '"' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// RetryAfter returns how long an answer asks its sender to wait, in seconds or until a date. It is at most an hour, so
// that no receiver can silence a sender for a day.
func RetryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), int(time.Hour/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), time.Hour)
	}
	return 0
}
