package main

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// printed is a format in the sources, with the prefixes that its call gives it.
type printed struct {
	file, format string
	text         string // the format without prefixes
	level        level
}

var (
	callHead    = regexp.MustCompile(`\b([A-Za-z_]\w*)\s*\(`)
	textDefine  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:\w+[ \t]+)*"(?:[^"\\\n]|\\.)*"(?:[ \t]*(?:"(?:[^"\\\n]|\\.)*"|\w+))*)[ \t]*$`)
	fmtDefine   = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(pr_fmt|dev_fmt)(?:\([ \t]*(\w+)[ \t]*\))?[ \t]+(.*)$`)
	localHeader = regexp.MustCompile(`(?m)^#[ \t]*include[ \t]+"([\w./-]+)"`)
	prefixName  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+DM_MSG_PREFIX[ \t]+"([^"]*)"`)
	oneToken    = regexp.MustCompile(`^\s*(?:("(?:[^"\\]|\\.)*")|([A-Za-z_]\w*))`)
	formatMac   = map[string]string{"PRIu64": "llu", "PRIx64": "llx", "PRIX64": "llX", "PRId64": "lld", "PRIu32": "u",
		"FW_BUG": "[Firmware Bug]: ", "FW_WARN": "[Firmware Warn]: ", "FW_INFO": "[Firmware Info]: ",
		"HW_ERR": "[Hardware Error]: ", "DEPRECATED": "[Deprecated]: "}
)

// extract returns the formats that the calls of a file print, in their order.
func extract(t *tree, file string, texts map[string]string, family *family) (all []printed) {
	source := uncomment(t.files[file])
	s := scope{module: t.module(file), texts: texts, prefix: map[string]string{}}
	for _, header := range localHeader.FindAllStringSubmatch(source, -1) {
		if text, ok := t.files[path.Join(path.Dir(file), header[1])]; ok {
			s.readDefinitions(uncomment(text))
		}
	}
	target := path.Base(path.Dir(file))
	if d := prefixName.FindStringSubmatch(source); d != nil {
		target = d[1]
	}
	definitions := fmtDefine.FindAllStringSubmatchIndex(source, -1)
	for _, at := range callHead.FindAllStringSubmatchIndex(source, -1) {
		for len(definitions) > 0 && definitions[0][0] < at[0] { // a file may define its prefix anew
			s.readDefinitions(source[definitions[0][0]:definitions[0][1]])
			definitions = definitions[1:]
		}
		p, ok := family.printer(source[at[2]:at[3]])
		if !ok {
			continue
		}
		args := arguments(source[at[1]:])
		at := callLevel(source[at[2]:at[3]], args)
		if family.level != anyLevel && at != family.level {
			continue
		}
		text, ok := s.format(args)
		if !ok {
			continue
		}
		driver := cmp.Or(family.driver, s.module)
		prefix := strings.NewReplacer("{pr}", s.prefix["pr_fmt"], "{devfmt}", s.prefix["dev_fmt"], "{mod}", driver,
			"{dev}", family.device(driver), "{dm}", target).Replace(p)
		head, tail, ok := strings.Cut(prefix, "{}")
		format := head + text
		if ok {
			format += tail
		}
		all = append(all, printed{file, format, text, at})
	}
	return all
}

// level is the level of printk, as far as the rules distinguish it.
type level int

const (
	anyLevel     level = iota
	belowWarning       // notice, info
	atWarning
	atError // or worse
)

func (l level) String() string { return [...]string{"?", "below", "warning", "error"}[l] }

var (
	errorPrinter   = regexp.MustCompile(`(?i)(?:^|_)(?:emerg|alert|crit|err|error|panic|fatal)(?:_|$)|^DM(?:EMERG|ALERT|CRIT|ERR)`)
	errorLevel     = regexp.MustCompile(`\bKERN_(?:EMERG|ALERT|CRIT|ERR)\b|\bql_log_(?:fatal|warn)\b|^\s*VFS(?:\s*\||\s*$)`)
	warningPrinter = regexp.MustCompile(`(?i)(?:^|_)warn(?:ing)?(?:_|$)|^DMWARN|^v?printk(?:_(?:ratelimited|once|deferred))?$`)
	warningLevel   = regexp.MustCompile(`\bKERN_WARNING\b|\bql_log_info\b`)
	otherLevel     = regexp.MustCompile(`\bKERN_(?:NOTICE|INFO)\b`)
)

// callLevel returns the level of a call, by the printer's name or the level among its arguments: also that of qla2xxx,
// which calls errors warnings, and of cifs_dbg. printk without one prints warnings (CONFIG_MESSAGE_LOGLEVEL_DEFAULT).
func callLevel(printer string, args []string) level {
	has := func(level *regexp.Regexp) bool { return slices.ContainsFunc(args, level.MatchString) }
	switch {
	case errorPrinter.MatchString(printer) || has(errorLevel):
		return atError
	case !has(otherLevel) && (warningPrinter.MatchString(printer) || has(warningLevel)):
		return atWarning
	}
	return belowWarning
}

// readDefinitions reads the definitions of pr_fmt and dev_fmt.
func (s scope) readDefinitions(source string) {
	for _, d := range fmtDefine.FindAllStringSubmatch(source, -1) {
		if name, body := d[1], d[3]; name == "dev_fmt" && strings.HasPrefix(body, "pr_fmt") {
			s.prefix[name] = s.prefix["pr_fmt"]
		} else {
			s.prefix[name], _ = s.evaluate(firstArgument(body), d[2])
		}
	}
}

// defines returns the macros of a file that expand to texts.
func defines(source string, into map[string]string) {
	s := scope{texts: into}
	for _, d := range textDefine.FindAllStringSubmatch(uncomment(source), -1) {
		if text, ok := s.evaluate(d[2], ""); ok {
			into[d[1]] = text
		}
	}
}

// uncomment joins continued lines and blanks comments out. It keeps the texts in quotes.
func uncomment(source string) string {
	source = strings.ReplaceAll(source, "\\\n", " ")
	var out strings.Builder
	out.Grow(len(source))
	for i := 0; i < len(source); {
		switch c := source[i]; {
		case c == '"' || c == '\'':
			end := quoted(source, i)
			out.WriteString(source[i:end])
			i = end
		case strings.HasPrefix(source[i:], "//"):
			i += len(source[i:]) - len(afterLine(source[i:]))
		case strings.HasPrefix(source[i:], "/*"):
			end := strings.Index(source[i:], "*/")
			if end < 0 {
				return out.String()
			}
			out.WriteString(strings.Repeat("\n", strings.Count(source[i:i+end], "\n")) + " ")
			i += end + 2
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String()
}

func afterLine(s string) string {
	if end := strings.IndexByte(s, '\n'); end >= 0 {
		return s[end:]
	}
	return ""
}

// quoted returns the end of the text in quotes that begins at i; an unclosed quote ends with its line.
func quoted(s string, i int) int {
	for j := i + 1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case s[i]:
			return j + 1
		case '\n':
			return j
		}
	}
	return len(s)
}

const maxCall = 8 << 10 // longer is no call, but an unclosed parenthesis

// arguments splits the text after the opening parenthesis of a call.
func arguments(s string) (args []string) {
	depth, from := 0, 0
	for i := 0; i < len(s) && i < maxCall; i++ {
		switch s[i] {
		case '"', '\'':
			i = quoted(s, i) - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth == 0 {
				return append(args, s[from:i])
			}
			depth--
		case ',':
			if depth == 0 {
				args = append(args, s[from:i])
				from = i + 1
			}
		case ';':
			if depth == 0 {
				return nil
			}
		}
	}
	return nil
}

func firstArgument(s string) string {
	if args := arguments(s + ")"); len(args) > 0 {
		return args[0]
	}
	return s
}

// scope holds the definitions to which texts in a file may refer.
type scope struct {
	module string
	texts  map[string]string // macros that are texts
	prefix map[string]string // the text that pr_fmt and dev_fmt put before a format
}

// format returns the first argument that is a text.
func (s scope) format(args []string) (string, bool) {
	for _, arg := range args {
		if strings.Contains(arg, "KERN_CONT") || strings.Contains(arg, "KERN_DEBUG") {
			return "", false // the rest of a line, or debugging output
		}
		if !strings.Contains(arg, `"`) {
			if _, known := s.texts[strings.TrimSpace(arg)]; !known {
				continue
			}
		}
		if text, ok := s.evaluate(arg, ""); ok && text != "" {
			return text, true
		}
	}
	return "", false
}

// evaluate concatenates the texts of an expression; parameter is the name that counts as empty in it. An unknown word
// stands for a text that only the running kernel knows.
func (s scope) evaluate(expression, parameter string) (string, bool) {
	var out strings.Builder
	for rest := expression; strings.TrimSpace(rest) != ""; {
		token := oneToken.FindStringSubmatch(rest)
		if token == nil {
			return out.String(), out.Len() > 0 && strings.HasPrefix(strings.TrimSpace(rest), "?")
		}
		rest = rest[len(token[0]):]
		switch text, word := token[1], token[2]; {
		case text != "":
			out.WriteString(decode(text))
		case word == parameter, strings.HasPrefix(word, "KERN_"):
		case word == "KBUILD_MODNAME":
			out.WriteString(s.module)
		case formatMac[word] != "":
			out.WriteString(formatMac[word])
		default:
			known, ok := s.texts[word]
			if !ok {
				known = "%s"
			}
			out.WriteString(known)
		}
	}
	return out.String(), true
}

// decode returns the bytes of a text in quotes.
func decode(text string) string {
	if s, err := strconv.Unquote(text); err == nil {
		return s
	}
	return strings.Trim(text, `"`)
}
