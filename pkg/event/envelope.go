package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
)

const (
	maxDepth = 32 // of JSON

	data, dataBase64, contentType = "data", "data_base64", "datacontenttype"
)

// Envelope is a CloudEvent of any kind.
type Envelope struct {
	cloudevents.Event
	// JSON is the event in the JSON format, in one spelling: the same event gives the same JSON in any mode. It has the
	// attributes in the order of their names, and then the data. JSON data keeps its numbers and the order of its members.
	JSON []byte

	attributes map[string]any // string, bool or json.Number
}

// specified are the attributes of the specification: texts that are not empty.
var specified = []string{"specversion", "id", "source", "type", "subject", contentType, "dataschema", "time"}

var attributeName = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// ReadEnvelope reads an event in the JSON format of CloudEvents 1.0. It refuses everything that a strict JSON parser,
// or the specification, would refuse.
func ReadEnvelope(text []byte) (e Envelope, err error) {
	if err := strictJSON(text); err != nil {
		return e, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return e, errors.New("no JSON object")
	}
	e.attributes = map[string]any{}
	for name, raw := range members {
		if name == data || name == dataBase64 || string(raw) == "null" { // a null attribute is not set
			continue
		}
		if e.attributes[name], err = readAttribute(name, raw); err != nil {
			return e, fmt.Errorf("%.64s: %w", name, err)
		}
	}
	switch version := e.attributes["specversion"]; version { // before the SDK reads the event: it panics for some of 0.3
	case nil:
		return e, errors.New("specversion is missing")
	case cloudevents.CloudEventsVersionV1:
	default:
		return e, fmt.Errorf("specversion: %.20q is not 1.0", version)
	}
	head, err := plainJSON(e.attributes)
	if err == nil {
		err = json.Unmarshal(head, &e.Event)
	}
	if err == nil {
		err = e.Validate()
	}
	if err != nil {
		return e, err
	}
	member, err := e.setData(members[data], members[dataBase64])
	if err != nil {
		return e, err
	}
	e.JSON = slices.Concat(bytes.TrimSuffix(head, []byte("}")), member, []byte("}"))
	return e, nil
}

// readAttribute returns the value of an attribute. It refuses names and values that the SDK accepts.
func readAttribute(name string, raw json.RawMessage) (value any, err error) {
	if !attributeName.MatchString(name) {
		return nil, errors.New("the name of an attribute has lower-case letters and digits alone")
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return nil, err
	}
	text, _ := value.(string)
	if text == "" && slices.Contains(specified, name) {
		return nil, errors.New("must be a string that is not empty")
	}
	switch name {
	case "time":
		return strings.ToUpper(text), nil // RFC 3339 allows small letters, the SDK does not
	case "dataschema":
		if u, err := url.Parse(text); err != nil || !u.IsAbs() {
			return nil, errors.New("must be an absolute URI")
		}
	}
	if _, ok := value.(float64); ok {
		if _, err := strconv.ParseInt(string(raw), 10, 32); err != nil {
			return nil, errors.New("an integer has 32 bits")
		}
		return json.Number(raw), nil
	}
	return value, nil
}

// SourceText returns the source as it was sent: the SDK encodes characters that a URI-reference cannot have.
func (e Envelope) SourceText() string {
	text, _ := e.attributes["source"].(string)
	return text
}

// IsReference reports whether a text has no character that a URI-reference cannot have. The SDK verifies the rest.
func IsReference(text string) bool { return !strings.ContainsAny(text, " \"<>\\^`{|}") }

// setData sets the data from one of its members, and returns that member in one spelling.
func (e *Envelope) setData(raw, encoded json.RawMessage) (member []byte, err error) {
	var text string
	switch isBytes := encoded != nil && string(encoded) != "null"; {
	case isBytes && raw != nil:
		return nil, errors.New("data and data_base64 exclude each other")
	case isBytes:
		if json.Unmarshal(encoded, &text) != nil {
			return nil, errors.New("data_base64: must be a string")
		}
		e.DataBase64 = true
		e.DataEncoded, err = base64.StdEncoding.Strict().DecodeString(text)
		if err != nil || strings.ContainsAny(text, "\r\n") {
			return nil, errors.New("data_base64: must be base64")
		}
		return fmt.Appendf(nil, `,"data_base64":%q`, text), nil
	case raw == nil:
		return nil, nil
	case raw[0] == '"' && !isJSON(mediaOf(e.DataContentType())):
		if err = json.Unmarshal(raw, &text); err == nil {
			e.DataEncoded = []byte(text)
			raw, err = plainJSON(text)
		}
	default:
		e.DataEncoded = raw
	}
	compact := bytes.NewBufferString(`,"data":`)
	if err == nil {
		err = json.Compact(compact, raw)
	}
	return compact.Bytes(), err
}

// plainJSON is json.Marshal without HTML escapes.
func plainJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// ReadBinary reads an event in the binary mode of the HTTP protocol binding.
func ReadBinary(header http.Header, body []byte) (e Envelope, err error) {
	members := map[string]json.RawMessage{}
	for name, values := range header {
		attribute, ok := strings.CutPrefix(strings.ToLower(name), "ce-")
		media := name == "Content-Type"
		if media {
			attribute = contentType
		}
		if !ok && !media {
			continue
		}
		if attribute == data || attribute == dataBase64 || ok && attribute == contentType || len(values) != 1 {
			return e, fmt.Errorf("header %.64s: is no attribute, or is given twice", name)
		}
		text := values[0]
		if decoded := headerText(text); ok && (attribute != "source" || IsReference(decoded)) {
			text = decoded // else the sender has not encoded the percent signs of a source
		}
		if !utf8.ValidString(text) {
			return e, fmt.Errorf("header %.64s: no UTF-8", name)
		}
		if members[attribute], err = plainJSON(text); err != nil {
			return e, err
		}
	}
	if len(body) > 0 {
		name, value, err := dataOf(header.Get("Content-Type"), body)
		if err != nil {
			return e, fmt.Errorf("data: %w", err)
		}
		members[name] = value
	}
	text, err := plainJSON(members)
	if err != nil {
		return e, err
	}
	return ReadEnvelope(text)
}

// headerText decodes a header (binding, section 3.1.3.2). A percent sign that starts no escape stays: not every sender
// encodes it.
func headerText(text string) string {
	if len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"' {
		text = strings.ReplaceAll(strings.ReplaceAll(text[1:len(text)-1], `\"`, `"`), `\\`, `\`)
	}
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

// dataOf returns the member of the JSON format that preserves a body byte for byte: JSON as it is, a text as a string,
// and anything else in base64. Without a media type, valid JSON counts as JSON.
func dataOf(media string, body []byte) (name string, value json.RawMessage, err error) {
	kind, parameters, err := mime.ParseMediaType(media)
	if err != nil && media != "" {
		return "", nil, err
	}
	charset := strings.ToLower(parameters["charset"])
	if charset == "" || charset == "utf-8" || charset == "us-ascii" {
		err = strictJSON(body)
		switch {
		case media == "" && err == nil, isJSON(kind):
			return data, body, err
		case strings.HasPrefix(kind, "text/"), strings.HasSuffix(kind, "/xml"), strings.HasSuffix(kind, "+xml"):
			if utf8.Valid(body) {
				value, err = plainJSON(string(body))
				return data, value, err
			}
		}
	}
	value, err = json.Marshal(body) // json encodes bytes in base64
	return dataBase64, value, err
}

// mediaOf returns the media type in a content type; without one, data is JSON.
func mediaOf(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return cloudevents.ApplicationJSON
	}
	return media
}

func isJSON(media string) bool {
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// strictJSON refuses a text that JSON parsers may read in different ways: with invalid UTF-8, half of a surrogate pair,
// a duplicate name in an object, or too deep nesting.
func strictJSON(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("no JSON: invalid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := strictValue(decoder, 0)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	if err == nil && HasHalfPair(text) {
		err = errors.New("half of a surrogate pair")
	}
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return nil
}

// HasHalfPair reports whether an escape in JSON is half of a surrogate pair. Go replaces it, other parsers refuse it.
func HasHalfPair(text []byte) bool {
	for len(text) > 0 {
		_, text, _ = bytes.Cut(text, []byte(`\`))
		first := escaped(text)
		if !utf16.IsSurrogate(first) {
			text = text[min(1, len(text)):] // it may be a backslash
			continue
		}
		second, follows := bytes.CutPrefix(text[5:], []byte(`\`))
		if !follows || utf16.DecodeRune(first, escaped(second)) == utf8.RuneError {
			return true
		}
		text = second[5:]
	}
	return false
}

// escaped returns the code unit of an escape uXXXX; 0: the escape is another one.
func escaped(text []byte) rune {
	if len(text) < 5 || text[0] != 'u' {
		return 0
	}
	unit, _ := strconv.ParseUint(string(text[1:5]), 16, 16)
	return rune(unit)
}

// strictValue reads a value.
func strictValue(decoder *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested more than %d deep", maxDepth)
	}
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	if _, ok := token.(json.Delim); !ok {
		return nil
	}
	names := map[string]bool{}
	for decoder.More() {
		if token == json.Delim('{') {
			name, err := decoder.Token()
			if err != nil {
				return err
			}
			text, _ := name.(string)
			if names[text] {
				return fmt.Errorf("the name %.64q stands twice in an object", text)
			}
			names[text] = true
		}
		if err := strictValue(decoder, depth+1); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}
