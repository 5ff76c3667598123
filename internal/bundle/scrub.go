package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// removed stands where a secret was.
const removed = "[removed]"

// secret is one form in which secrets appear in texts.
type secret struct {
	has     string // every match has one of these characters
	form    *regexp.Regexp
	replace string
}

func form(has, pattern, replace string) secret {
	return secret{has, regexp.MustCompile(pattern), replace}
}

// secrets are what Scrub removes.
var secrets = []secret{
	// keys and certificates; also one whose end was cut off
	form("-", `-----BEGIN [A-Z0-9 ]{1,40}-----[^"]*?-----END [A-Z0-9 ]{1,40}-----`, "[removed: PEM]"),
	form("-", `-----BEGIN [A-Z0-9 ]{1,40}-----(?:[A-Za-z0-9+/=\s]|\\[nr])*`, "[removed: PEM]"),
	form("L", `LS0tLS1CRUdJTi[A-Za-z0-9+/]+=*`, "[removed: PEM]"), // in base64, as in a kubeconfig
	// Authorization: Bearer …
	form(":=", `(?i)(authorization\\?"?\s{0,4}[:=]\s{0,4}\\?"?)(?:[a-z]+ +)?[^\s"\\,]+`, "${1}"+removed),
	form(" ", `(?i)\b(bearer|basic) +[A-Za-z0-9._~+/-]{12,}=*`, "${1} "+removed),
	// JSON web tokens
	form(".", `\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?`, removed),
	// bootstrap tokens of kubeadm
	form(".", `\b[a-z0-9]{6}\.[a-z0-9]{16}\b`, removed),
	form("A", `\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`, removed),
	form("_", `\bgh[pousr]_[A-Za-z0-9]{20,}`, removed),
	// https://user:password@host
	form("@", `([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@"]*:)[^/\s"]*@`, "${1}"+removed+"@"),
	form(":=", `(?i)\b([a-z0-9_-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|signature|`+
		`credentials?)\\?"?\s{0,2}[:=]\s{0,2}\\?"?)[^\s",;&\\\[{]+`, "${1}"+removed),
	// arguments of programs, in records of the kernel's audit
	form("=", `(?i)\b(proctitle=|a[0-9]{1,3}=|cmdline=)(?:[^\s",]+|"[^"]*"|\\"[^"\\]*\\")`, "${1}"+removed),
}

// Scrub removes what looks like a secret from a text: it removes too much rather than too little.
func Scrub(text string) string {
	for _, s := range secrets {
		if strings.ContainsAny(text, s.has) {
			text = s.form.ReplaceAllString(text, s.replace)
		}
	}
	return text
}

// secretName is what the name of a secret ends with.
var secretName = regexp.MustCompile(`(?i)(passw(or)?d|passphrase|secret|token|api_?key|access_?key|credentials?|` +
	`authorization)$`)

// ScrubJSON scrubs the texts of a JSON document, and those that a name of a secret stands before.
func ScrubJSON(data []byte) ([]byte, error) {
	var document any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	return json.Marshal(scrubValue(document))
}

func scrubValue(v any) any {
	switch v := v.(type) {
	case string:
		return Scrub(v)
	case []any:
		for i := range v {
			v[i] = scrubValue(v[i])
		}
	case map[string]any:
		scrubbed := make(map[string]any, len(v))
		for name, value := range v {
			if text, ok := value.(string); ok && text != "" && secretName.MatchString(name) {
				value = removed
			}
			scrubbed[Scrub(name)] = scrubValue(value)
		}
		return scrubbed
	}
	return v
}
