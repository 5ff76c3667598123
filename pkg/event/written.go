package event

import (
	"bytes"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Written is an event with its text.
type Written struct {
	Event
	Name, Source string // the attributes "id" and "source"
	JSON         []byte // a part of what was read
}

// maxNested is how deep data may be nested that ReadWritten reads: no type of this version comes near it.
const maxNested = 16

// ReadWritten reads a batch of events that is, byte for byte, as agents write it: what Encode returns, in a JSON array
// without spaces. It goes through the envelope once, where Decode and the CloudEvents SDK go through it five times.
// Anything else is not ok, without a reason: that is for Decode to tell, which accepts all that ReadWritten accepts, and
// says the same of it.
func ReadWritten(batch []byte) (events []Written, ok bool) {
	c := &cursor{rest: batch, ok: true}
	c.text("[")
	for c.ok {
		begin := c.rest
		e := c.event()
		size := len(begin) - len(c.rest)
		if !c.ok || size > e.Type.maxSize() {
			return nil, false
		}
		e.JSON = begin[:size:size]
		events = append(events, e)
		if !bytes.HasPrefix(c.rest, []byte(",")) {
			break
		}
		c.text(",")
	}
	c.text("]")
	return events, c.ok && len(c.rest) == 0
}

// ReadOne is ReadWritten of one event without an array.
func ReadOne(text []byte) (e Written, ok bool) {
	c := &cursor{rest: text, ok: true}
	e = c.event()
	e.JSON = text
	return e, c.ok && len(c.rest) == 0 && len(text) <= e.Type.maxSize()
}

// cursor is at a place in a text. Once something is not as expected, ok is false for good.
type cursor struct {
	rest []byte
	ok   bool
}

// text goes beyond a text that must come next.
func (c *cursor) text(want string) {
	if c.ok = c.ok && len(c.rest) >= len(want) && string(c.rest[:len(want)]) == want; c.ok {
		c.rest = c.rest[len(want):]
	}
}

// maxPlain is less than what any receiver bounds an attribute by, in bytes.
const maxPlain = 1024

// plain goes beyond the rest of a JSON string and its closing quote. It must not be empty, and have only characters that
// every encoder writes as they are, whatever it escapes.
func (c *cursor) plain() []byte {
	end := bytes.IndexByte(c.rest[:min(len(c.rest), maxPlain)], '"')
	if c.ok = c.ok && end > 0; !c.ok {
		return nil
	}
	value := c.rest[:end]
	c.ok = isPlain(value)
	c.rest = c.rest[end+1:]
	return value
}

// isPlain reports whether every encoder writes a text as it is.
func isPlain[T string | []byte](text T) bool {
	for i := range len(text) {
		if b := text[i]; b <= ' ' || b >= 0x7f || b == '"' || b == '\\' || b == '<' || b == '>' || b == '&' {
			return false
		}
	}
	return true
}

// event reads an event in the order in which the CloudEvents SDK writes it.
func (c *cursor) event() (e Written) {
	c.text(`{"specversion":"1.0","id":"`)
	id := c.plain()
	c.text(`,"source":"`)
	source := c.plain()
	c.text(`,"type":"`)
	t, known := agentTypes[string(c.plain())]
	subject := ""
	if c.text(`,"`); c.ok && bytes.HasPrefix(c.rest, []byte(`subject"`)) {
		c.text(`subject":"`)
		subject = string(c.plain())
		c.text(`,"`)
	}
	c.text(`datacontenttype":"application/json","dataschema":"`)
	schema := c.plain()
	c.text(`,"time":"`)
	at := c.plain()
	c.text(`,"data":`)
	data := c.object()
	if c.text(`,"`); c.ok && bytes.HasPrefix(c.rest, []byte(`bootid"`)) {
		c.text(`bootid":"`)
		e.BootID = string(c.plain())
		c.text(`,"`)
	}
	c.text(`partitionkey":"`)
	node := c.plain()
	c.text(`,"sequence":"`)
	sequence := c.plain()
	c.text(`,"severity":"`)
	e.Severity = severity(c.plain())
	c.text(`,"stream":"`)
	stream := c.plain()
	c.text("}")
	if !c.ok || !known || e.Severity == "" || !hasSchema(schema, t) || !isID(id, stream, sequence) {
		c.ok = false
		return e
	}
	e.Type, e.Name = t, string(id)
	e.Stream = e.Name[:len(stream)]
	var errs [4]error
	e.Time, errs[0] = time.Parse(time.RFC3339Nano, string(at))
	e.Sequence, errs[1] = strconv.ParseUint(string(sequence), 10, 64)
	e.Subject, errs[2] = readSubject(subject)
	e.Data, errs[3] = readWrittenData(t, data)
	var again [64]byte
	c.ok = c.sender(&e, source, node) && errs == [4]error{} && !e.Time.IsZero() && e.Sequence > 0 &&
		string(e.Time.UTC().AppendFormat(again[:0], time.RFC3339Nano)) == string(at)
	return e
}

// readWrittenData is readData of what agents write.
func readWrittenData(t Type, data []byte) (any, error) {
	if t == FaultRaised || t == FaultUpdated || t == FaultCleared {
		if f, ok := readFault(data); ok {
			return f, nil
		}
	}
	return readData(t, data)
}

// sender reads the source. Names with characters that are to be encoded are not ok.
func (c *cursor) sender(e *Written, source, node []byte) bool {
	const begin, middle = "/clusters/", "/nodes/"
	cluster := len(source) - len(node) - len(middle) // where its name ends
	if cluster <= len(begin) || string(source[:len(begin)]) != begin || string(source[cluster:cluster+len(middle)]) != middle ||
		string(source[cluster+len(middle):]) != string(node) || !isName(source[len(begin):cluster]) || !isName(node) {
		return false
	}
	e.Source = string(source)
	e.Cluster, e.Node = e.Source[len(begin):cluster], e.Source[cluster+len(middle):]
	return true
}

func isName[T string | []byte](text T) bool {
	for i := range len(text) {
		b := text[i]
		if (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '-' && b != '_' && b != '.' {
			return false
		}
	}
	return true
}

// object goes beyond a JSON object that is as encoding/json writes it: nothing between its tokens, and no character in it that
// is escaped for HTML. Whether it is JSON is for who decodes it.
func (c *cursor) object() []byte {
	nested, quoted := 0, false
	if c.ok = c.ok && len(c.rest) > 0 && c.rest[0] == '{'; !c.ok {
		return nil
	}
	for i := 0; i < len(c.rest); i++ {
		switch b := c.rest[i]; {
		case b < ' ', b == '<', b == '>', b == '&', b == ' ' && !quoted, b == 0xe2 && separator(c.rest[i:]):
			c.ok = false
			return nil
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			if nested++; nested > maxNested {
				c.ok = false
				return nil
			}
		case b == '}' || b == ']':
			if nested--; nested == 0 {
				value := c.rest[:i+1]
				c.rest = c.rest[i+1:]
				return value
			}
		}
	}
	c.ok = false
	return nil
}

// separator reports whether a text begins with U+2028 or U+2029.
func separator(text []byte) bool {
	return len(text) >= 3 && text[1] == 0x80 && text[2]&^1 == 0xa8
}

// agentTypes are the types with data that this version reads.
var agentTypes = types(FaultRaised, FaultUpdated, FaultCleared, LeftoverFound, LeftoverReleased, LeftoverGone, ActionPlanned,
	ActionStarted, ActionSucceeded, ActionFailed, ActionRefused, NodeSnapshot, AgentStarted, AgentStopping, AgentAlive, AgentGap)

func types(all ...Type) map[string]Type {
	byName := map[string]Type{}
	for _, t := range all {
		byName[string(t)] = t
	}
	return byName
}

// severity returns the severity that a text is, empty where it is none.
func severity(text []byte) finding.Severity {
	for _, s := range []finding.Severity{finding.Warning, finding.Info, finding.Fatal} {
		if string(s) == string(text) {
			return s
		}
	}
	return ""
}

// hasSchema reports whether a text is t.Schema().
func hasSchema(text []byte, t Type) bool {
	const end = ".json"
	name := t[len(typePrefix):]
	return len(text) == len(schemaBase)+len(name)+len(end) && string(text[:len(schemaBase)]) == schemaBase &&
		string(text[len(schemaBase):len(schemaBase)+len(name)]) == string(name) && string(text[len(text)-len(end):]) == end
}

// isID reports whether the ID is made of a ULID and a sequence.
func isID(id, stream, sequence []byte) bool {
	if len(sequence) != 20 || len(id) != 47 || !isStream(stream) {
		return false
	}
	for _, b := range sequence {
		if b < '0' || b > '9' {
			return false
		}
	}
	return string(id[:26]) == string(stream) && id[26] == '-' && string(id[27:]) == string(sequence)
}

// isStream reports whether a text is a ULID.
func isStream[T string | []byte](text T) bool {
	if len(text) != 26 || text[0] > '7' {
		return false
	}
	for i := range len(text) {
		b := text[i]
		if (b < '0' || b > '9') && (b < 'A' || b > 'Z' || b == 'I' || b == 'L' || b == 'O' || b == 'U') {
			return false
		}
	}
	return true
}
