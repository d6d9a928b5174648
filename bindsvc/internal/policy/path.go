package policy

import (
	"errors"
	"net/url"
	"path"
	"regexp"
	"strings"
)

const maxPattern = 512

var segmentPattern = regexp.MustCompile(`^(\{[A-Za-z0-9_]{1,32}\}|\*|[^{}*/?#\s]+)$`)

// verifyPattern checks a path pattern: /orders/{id} and /orders/* stand for any one
// segment there, /orders/** for /orders and everything below it.
func verifyPattern(pattern string) error {
	switch {
	case !strings.HasPrefix(pattern, "/") || len(pattern) > maxPattern:
		return errors.New("want a path pattern that begins with /, such as /js/a/orders/{id} or /js/a/**")
	case pattern == "/" || pattern == "/**":
		return nil
	case Canonical(pattern) != pattern:
		return errors.New("want a clean path: no empty or dot segment, no ; and no / at the end")
	}
	segments := strings.Split(strings.TrimSuffix(pattern[1:], "/**"), "/")
	for _, segment := range segments {
		if !segmentPattern.MatchString(segment) {
			return errors.New("want every segment to be literal, {name} or *, and ** only at the end")
		}
	}
	return nil
}

// Canonical is the path that patterns are compared with: what servers commonly make of
// one before they choose a handler. It takes a decoded path. Parameters of segments
// (;x=1) are dropped, then dot segments and empty ones are resolved, and a last slash
// is dropped. A guard must not be passed by a spelling that its node does not tell apart.
func Canonical(decoded string) string {
	if strings.ContainsRune(decoded, ';') {
		segments := strings.Split(decoded, "/")
		for i, segment := range segments {
			segments[i], _, _ = strings.Cut(segment, ";")
		}
		decoded = strings.Join(segments, "/")
	}
	return path.Clean("/" + decoded)
}

// ErrHiddenDots is what PathOf says of a path that no client needs, and that one server
// takes for another path than the next.
var ErrHiddenDots = errors.New("the path has a dot segment that is encoded, or has parameters")

// PathOf decodes the path of a URL for Canonical. Parameters of segments end at the next
// slash that is written as one: servers that know parameters take them off before they
// decode, so that /admin;%2Fx is /admin to them.
func PathOf(escaped string) (string, error) {
	segments := strings.Split(escaped, "/")
	for i, segment := range segments {
		whole, err := url.PathUnescape(segment)
		if err != nil {
			return "", err
		}
		if hidesDots(segment, whole) {
			return "", ErrHiddenDots
		}
		name, _, _ := strings.Cut(segment, ";")
		if segments[i], err = url.PathUnescape(name); err != nil {
			return "", err
		}
	}
	return path.Clean("/" + strings.Join(segments, "/")), nil
}

// hidesDots reports whether a segment becomes . or .., or several of which one is, by
// decoding it or by taking its parameters off.
func hidesDots(segment, decoded string) bool {
	if segment == "." || segment == ".." {
		return false
	}
	for _, part := range strings.FieldsFunc(decoded, func(r rune) bool { return r == '/' || r == '\\' }) {
		if name, _, _ := strings.Cut(part, ";"); name == "." || name == ".." {
			return true
		}
	}
	return false
}

// paths finds the values of all patterns that match a path, by its segments: the time
// does not grow with the number of patterns.
type paths[T any] struct{ root pathNode[T] }

type pathNode[T any] struct {
	literal map[string]*pathNode[T]
	any     *pathNode[T] // {name} and *
	here    []T
	below   []T // /**: here and below
}

func (p *paths[T]) add(pattern string, value T) {
	rest, isBelow := strings.CutSuffix(pattern, "/**")
	node := &p.root
	for rest = strings.TrimPrefix(rest, "/"); rest != ""; {
		var segment string
		segment, rest, _ = strings.Cut(rest, "/")
		next := node.any
		isAny := segment == "*" || strings.HasPrefix(segment, "{")
		if !isAny {
			next = node.literal[segment]
		}
		if next == nil {
			next = &pathNode[T]{}
			switch {
			case isAny:
				node.any = next
			case node.literal == nil:
				node.literal = map[string]*pathNode[T]{segment: next}
			default:
				node.literal[segment] = next
			}
		}
		node = next
	}
	if isBelow {
		node.below = append(node.below, value)
	} else {
		node.here = append(node.here, value)
	}
}

// visit calls found with the values of each pattern that matches the canonical path,
// the most specific pattern first (literal segments before {name} before /**), until
// found returns true.
func (p *paths[T]) visit(canonical string, found func(values []T) (stop bool)) {
	p.root.visit(strings.TrimPrefix(canonical, "/"), found)
}

func (n *pathNode[T]) visit(rest string, found func(values []T) (stop bool)) bool {
	if rest == "" {
		if len(n.here) > 0 && found(n.here) {
			return true
		}
		return len(n.below) > 0 && found(n.below)
	}
	segment, after, _ := strings.Cut(rest, "/")
	if next := n.literal[segment]; next != nil && next.visit(after, found) {
		return true
	}
	if n.any != nil && n.any.visit(after, found) {
		return true
	}
	return len(n.below) > 0 && found(n.below)
}

// matches reports whether any value that suits is at a pattern that matches.
func (p *paths[T]) matches(canonical string, suits func(T) bool) (match T, ok bool) {
	p.visit(canonical, func(values []T) bool {
		for _, value := range values {
			if suits(value) {
				match, ok = value, true
				return true
			}
		}
		return false
	})
	return match, ok
}
