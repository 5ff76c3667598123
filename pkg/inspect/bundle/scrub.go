package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// removed replaces a secret.
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

// name matches the end of a secret's name: of a setting, a flag, a variable, a mount option, a JSON member.
const name = `(?:passw(?:or)?d|passphrase|secret|token|credentials?|signature|` +
	`(?:api|access|account|private|preshared|secret|shared|master|encryption|signing)[_-]?key)(?:_in|[0-9])?`

// assigned matches a name and everything between it and its value.
const assigned = `(?i)\b([a-z0-9_.-]*` + name + `\\?"?[ \t]{0,2}[:=][ \t]{0,2}`

// value matches a value to its end, or a PEM key. Its first character is not one that begins a list or "[removed]".
const value = `(?:` + cutPEM + `|[^\s",;&\\[{](?:\\.|[^\s",])*)`

// cutPEM matches a truncated key or certificate.
const cutPEM = `-----BEGIN [A-Z0-9 ]{1,40}-----(?:[A-Za-z0-9+/=\s]|\\[nr])*`

// secrets are the forms that Scrub removes. It removes no other forms: a person should check a file before it leaves
// the organization.
var secrets = []secret{
	// keys and certificates
	form("-", `-----BEGIN [A-Z0-9 ]{1,40}-----[^"]*?-----END [A-Z0-9 ]{1,40}-----`, "[removed: PEM]"),
	form("L", `LS0tLS1CRUdJTi[A-Za-z0-9+/]+=*`, "[removed: PEM]"), // in base64, as in a kubeconfig
	form("-", `(?i)AGE-SECRET-KEY-1[0-9a-z]+`, removed),
	// Authorization: Bearer …
	form(":=", `(?i)(authorization\\?"?[ \t]{0,4}[:=][ \t]{0,4}\\?"?)(?:[a-z]+ +)?[^\s"\\,]+`, "${1}"+removed),
	form(":", `(?i)\b((?:set-)?cookie\\?"?[ \t]{0,2}:[ \t]{0,2})[^\s"]+(?:;[ \t]*[^\s";]+)*`, "${1}"+removed),
	form(" ", `(?i)\b(bearer|basic) +[A-Za-z0-9._~+/-]{12,}=*`, "${1} "+removed),
	// JSON web tokens, signed or encrypted
	form(".", `\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){0,3}`, removed),
	// bootstrap tokens of kubeadm
	form(".", `\b[a-z0-9]{6}\.[a-z0-9]{16}\b`, removed),
	// tokens with their issuer's prefix: AWS, Tencent, Alibaba; Google; GitHub, GitLab; Slack; vaults; npm, Docker,
	// DigitalOcean; OpenAI, Anthropic
	form("A", `\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:AKID|LTAI)[A-Za-z0-9]{12,}|\bAIza[A-Za-z0-9_-]{30,}`, removed),
	form(".", `\bya29\.[A-Za-z0-9_-]{16,}|\bhv[sbr]\.[A-Za-z0-9_-]{20,}`, removed),
	form("_", `\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}`, removed),
	form("_", `\b(?:npm|dckr_pat|dop_v1|glpat|sk_live|rk_live)_[A-Za-z0-9_-]{20,}`, removed),
	form("-", `\bgl[a-z]{2,5}-[A-Za-z0-9_.-]{16,}|\bGOCSPX-[A-Za-z0-9_-]{16,}`, removed),
	form("-", `\bx(?:ox[a-z]|app)-[A-Za-z0-9-]{10,}|\bsk-[A-Za-z0-9_-]{20,}`, removed),
	form("=", `\bAQ[A-Za-z0-9+/]{36,38}==`, removed), // of Ceph
	form("/", `(hooks\.slack\.com/[a-z]+/)[^\s"]+`, "${1}"+removed),
	// https://user:password@host, https://token@host
	form("@", `([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@"]*:)[^/\s"]*@`, "${1}"+removed+"@"),
	form("@", `([A-Za-z][A-Za-z0-9+.-]*://)[^/\s:@"]{16,}@`, "${1}"+removed+"@"),
	// https://host?sig=…&token=…
	form("?&", `(?i)([?&;][a-z0-9_.-]*(?:sig|key|code|auth|pwd|`+name+`)=)[^\s&"#]+`, "${1}"+removed),
	// password="a b", password=a
	form(":=", assigned+`)(?:"(?:\\[^\n]|[^"\\\n])+"|'[^'\n]+')`, `${1}"`+removed+`"`),
	form(":=", assigned+`\\?"?)`+value, "${1}"+removed),
	form("=", `(?i)\b((?:pass|psk|pwd)[ \t]{0,2}=[ \t]{0,2})[^\s,"]+`, "${1}"+removed),
	form(":", `("auth"[ \t]{0,2}:[ \t]{0,2})"[^"\n]+"`, `${1}"`+removed+`"`), // of a registry
	// --password a, -u user:password, the short flags of some programs
	form("-", `(?i)((?:^|[^\w/.-])--?[a-z0-9_-]*`+name+`["']?[ \t]+)(?:"[^"\n]*"|'[^'\n]*'|[^\s"',]+)`, "${1}"+removed),
	form("-", `\b((?:mysql|mariadb|sshpass|(?:docker|podman|nerdctl|registry) login)\b[^\n|;]*?\s-p ?)[^\s"',]+`, "${1}"+removed),
	form("-", `(\s-pass(?:in|out)?[ \t]+pass:)[^\s"',]+`, "${1}"+removed),
	form("-", `(\s(?:-u|-U|--user|--proxy-user)[ =]?[^\s:=/]+:)[^\s"',]+`, "${1}"+removed),
	form("-", cutPEM, "[removed: PEM]"),
	// arguments of programs, in kernel audit records
	form("=", `(?i)\b(proctitle=|a[0-9]{1,3}=|cmdline=)(?:[^\s",]+|"[^"]*"|\\"[^"\\]*\\")`, "${1}"+removed),
}

// Scrub removes secrets of the usual forms from a text, and rather too much than too little.
func Scrub(text string) string {
	for _, s := range secrets {
		if strings.ContainsAny(text, s.has) {
			text = s.form.ReplaceAllString(text, s.replace)
		}
	}
	return text
}

// secretName matches the name of a secret, and secretFlag a flag before one.
var (
	secretName = regexp.MustCompile(`(?i)(?:authorization|` + name + `)$`)
	secretFlag = regexp.MustCompile(`(?i)^--?[a-z0-9_-]*` + name + `$`)
)

// ScrubJSON scrubs the texts of a JSON document, and removes those after a secret's name.
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
		flagged := false // the previous element is a flag before a secret
		for i := range v {
			text, isText := v[i].(string)
			if v[i] = scrubValue(v[i]); flagged && isText {
				v[i] = removed
			}
			flagged = isText && secretFlag.MatchString(text)
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
