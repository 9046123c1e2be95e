package options

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

// DecodeStrictly decodes JSON. Unknown fields, trailing text and zeros that would become another number are
// errors. Errors name the path of the value and the correction, and no types of Go.
func DecodeStrictly(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var raw json.RawMessage
	if err := decoder.Decode(&raw); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early")
	} else if err != nil {
		return fmt.Errorf("not valid JSON: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more text follows the JSON")
	}
	if err := checkJSON("", raw, reflect.TypeOf(into).Elem()); err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// checkJSON returns an error if data can't be decoded into a t. place is the path of data.
func checkJSON(place string, data json.RawMessage, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if string(data) == "null" {
		return nil
	}
	isDuration := t == reflect.TypeFor[caddy.Duration]()
	if _, decodesItself := reflect.New(t).Interface().(json.Unmarshaler); decodesItself && !isDuration {
		return atPath(place, json.Unmarshal(data, reflect.New(t).Interface()))
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			return kindOf(t).inJSON(place, data)
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if err := checkField(place, name, object[name], t); err != nil {
				return err
			}
		}
	case reflect.Slice:
		var list []json.RawMessage
		if json.Unmarshal(data, &list) != nil {
			return kindOf(t).inJSON(place, data)
		}
		for i, element := range list {
			if err := checkJSON(fmt.Sprintf("%s[%d]", place, i), element, t.Elem()); err != nil {
				return err
			}
		}
	default:
		if json.Unmarshal(data, reflect.New(t).Interface()) != nil || isDuration && isNanoseconds(data) {
			return kindOf(t).inJSON(place, data)
		}
	}
	return nil
}

// checkField checks a field of a struct, or a value of a map. A field with the tag zero must not be 0. The tag
// has the default of the field, which applies if the field is left out.
func checkField(place, name string, data json.RawMessage, t reflect.Type) error {
	path := strings.TrimPrefix(place+"."+name, ".")
	if t.Kind() == reflect.Map {
		return checkJSON(path, data, t.Elem())
	}
	fields := jsonFields(t)
	names := slices.Sorted(maps.Keys(fields))
	i := slices.IndexFunc(names, func(other string) bool { return strings.EqualFold(name, other) })
	if i < 0 {
		return atPath(place, unknownFieldError(name, fields))
	}
	field := fields[names[i]]
	if err := checkJSON(path, data, field.Type); err != nil {
		return err
	}
	instead, value := field.Tag.Get("zero"), reflect.New(field.Type)
	if instead == "" || string(data) == "null" {
		return nil
	}
	if err := json.Unmarshal(data, value.Interface()); err == nil && value.Elem().IsZero() {
		return fmt.Errorf("%s must not be 0: leave it out for %s", path, instead)
	}
	return nil
}

// jsonFields returns the fields of a struct by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.StructField {
	fields := make(map[string]reflect.StructField)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f
		}
	}
	return fields
}

func unknownFieldError(name string, fields map[string]reflect.StructField) error {
	names := slices.Sorted(maps.Keys(fields))
	if near := Suggest(name, names); near != "" {
		return fmt.Errorf("unknown field %.100q (did you mean %s?)", name, near)
	}
	for _, outer := range names {
		if home(name, fields[outer].Type) {
			return fmt.Errorf("unknown field %.100q: it belongs in %s", name, outer)
		}
	}
	return fmt.Errorf("unknown field %.100q: write one of %s", name, strings.Join(names, ", "))
}

// home reports whether a struct below t has a field of this name.
func home(name string, t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Map || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	_, there := jsonFields(t)[name]
	return there
}

// atPath adds the path of a value to an error.
func atPath(place string, err error) error {
	if err == nil || place == "" {
		return err
	}
	return fmt.Errorf("%s: %w", place, err)
}

// isNanoseconds reports whether a duration is a number, which is probably meant in seconds.
func isNanoseconds(data json.RawMessage) bool {
	n, _ := strconv.Atoi(string(data))
	return n > 0 && n < 1000
}

// kindOf returns the kind of values that belong into a t.
func kindOf(t reflect.Type) kind {
	switch {
	case t == reflect.TypeFor[caddy.Duration]():
		return duration
	case t.Kind() == reflect.Struct:
		return kind{name: "an object with " + strings.Join(slices.Sorted(maps.Keys(jsonFields(t))), ", "), example: "{...}"}
	}
	return map[reflect.Kind]kind{
		reflect.Bool: {name: "true or false", example: "true"}, reflect.Int: wholeNumber, reflect.Int64: wholeNumber, reflect.Float64: number,
		reflect.String: {name: "a string", example: `"text"`}, reflect.Slice: {name: "a list", example: "[...]"},
		reflect.Map: {name: "an object", example: "{...}"},
	}[t.Kind()]
}

// inJSON returns the error for a value of another kind. It shows the value only where a number or a duration belongs,
// because other values may be secrets.
func (k kind) inJSON(place string, data json.RawMessage) error {
	text, shown := strings.Trim(string(data), `"`), string(data)
	write := "for example " + k.example
	if k.meant == nil {
		shown = map[byte]string{'"': "a string", '[': "a list", '{': "an object", 't': "true", 'f': "false"}[data[0]]
		return fmt.Errorf("%s must be %s, not %s: write %s", cmp.Or(place, "it"), k.name, cmp.Or(shown, "a number"), write)
	}
	if meant := k.meant(text); meant != "" {
		write = meant
		if k.example[0] == '"' {
			write = strconv.Quote(meant)
		}
	}
	return fmt.Errorf("%s %s: write %s", place, k.wrong(shown, text).text, write)
}

// ReadableJSON returns JSON without escapes for < > and &.
func ReadableJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Object is a JSON object whose fields keep their order.
type Object []Field

// Field is a field of an [Object].
type Field struct {
	Name  string
	Value any
}

// MarshalJSON implements [json.Marshaler].
func (o Object) MarshalJSON() ([]byte, error) {
	var fields [][]byte
	for _, f := range o {
		name, _ := ReadableJSON(f.Name) // a text has no error
		value, err := ReadableJSON(f.Value)
		if err != nil {
			return nil, err
		}
		fields = append(fields, slices.Concat(name, []byte(":"), value))
	}
	return slices.Concat([]byte("{"), bytes.Join(fields, []byte(",")), []byte("}")), nil
}
