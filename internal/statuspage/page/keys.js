// Keys come percent-encoded from the API, because they can be any bytes.

const escaped = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\ufeff\ufff9-\ufffd]|[\u{e0000}-\u{e0fff}]/u;

// decodeKey returns the text of a key, or null if the key is not UTF-8.
function decodeKey(encoded) {
	try {
		return decodeURIComponent(encoded);
	} catch {
		return null;
	}
}

// keyText shows a key so that nobody can take it for another one: characters that are invisible, or
// that change the direction of the text, appear as their numbers.
function keyText(text) {
	const parts = [];
	for (const part of text.split(new RegExp(`(${escaped.source})`, 'u'))) {
		if (part === '') continue;
		if (!escaped.test(part)) parts.push(part);
		else {
			const code = part.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
			parts.push(element('span', { class: 'code-point', title: `The character U+${code}` }, `U+${code}`));
		}
	}
	return parts;
}

// shownKey returns an element for a key of a list: {key, cut} or {hashed_key}.
function shownKey(k) {
	if (k.hashed_key !== undefined) return element('span', { class: 'key hashed', title: 'hash_keys is set, so only the hash of the key is known' }, k.hashed_key);
	if (k.key === '' || k.key === undefined) return element('span', { class: 'key' }, element('em', {}, 'the empty key'));
	const text = decodeKey(k.key);
	const e = element('span', { class: 'key' }, ...(text === null ? [k.key] : keyText(text)));
	if (text === null) e.title = 'The key is not UTF-8, so it is shown percent-encoded';
	if (k.cut) e.append(element('span', { class: 'cut', title: 'The key is longer. Only its beginning is known' }, '… (cut)'));
	return e;
}

// plainKey is a key in a sentence, for screen readers and messages.
function plainKey(k) {
	const e = shownKey(k);
	return e.textContent.length > 60 ? `${e.textContent.slice(0, 60)}…` : e.textContent;
}

// changeable reports whether the whole key is known, so that a request can name it.
const changeable = (k) => k.hashed_key === undefined && !k.cut;

const sameKey = (k) => (k.hashed_key !== undefined ? `#${k.hashed_key}` : `${k.cut ? '~' : '='}${k.key || ''}`);

// keyQuery is the query that names a key.
const keyQuery = (encoded) => '?key=' + encoded;

const encodeKey = (text) => encodeURIComponent(text.toWellFormed ? text.toWellFormed() : text);

const zonePath = (zone, rest) => `zones/${encodeURIComponent(zone).replace(/^\.{1,2}$/, (d) => d.replaceAll('.', '%2E'))}${rest || ''}`;

// Evidence: how often a key was denied recently, when, and by which limit.

// addDenials adds up the denials of a key that two instances have counted.
function addDenials(a, b) {
	const later = new Date(a.last) < new Date(b.last) ? b : a;
	return { ...a, denied: a.denied + b.denied, at_most: a.at_most + b.at_most,
		first: new Date(a.first) < new Date(b.first) ? a.first : b.first, last: later.last, limit: later.limit };
}

// recentlyLines says how often a key was denied recently, and how often it would have been. whose is the key, if that isn't clear.
function recentlyLines(denials, ...whose) {
	return [false, true].map((shadow) => denials.filter((d) => Boolean(d.shadow) === shadow)).filter((list) => list.length > 0).map((list) => {
		const d = list.reduce(addDenials);
		const times = d.denied === 1 ? `once, ${since(d.last)} ago` : `${integer.format(d.denied)} times since ${formatInstant(new Date(d.first))}, the last time ${since(d.last)} ago`;
		return element('p', { class: 'recently' }, 'Recently', ...whose, `: ${d.shadow ? 'would have been denied' : 'denied'}${d.denied < d.at_most ? ' at least' : ''} ${times}: `, element('code', {}, d.limit), d.shadow ? ' (shadow mode)' : '');
	});
}

// Bars for limits.

// capacity returns how many events fit into a full budget, by the text of its limit.
function capacity(limit) {
	const words = limit.split(/\s+/);
	const burst = /^\d+$/.test(words[3] || '') ? words[3] : words[1];
	return /^\d+$/.test(burst || '') ? Number(burst) : null;
}

// whenFree writes when a request fits again.
function whenFree(seconds) {
	if (seconds === null) return 'never fits';
	if (seconds === 0) return 'fits now';
	return `frees in ${formatSpan(seconds)}, at ${formatInstant(Date.now() + seconds * 1000)}`;
}

// bar shows a share of a whole, with its text.
function bar(share, text, isUsedUp) {
	const filled = element('span', { class: 'filled' });
	filled.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
	return element('div', { class: isUsedUp ? 'bar used-up' : 'bar' },
		element('span', { class: 'track', 'aria-hidden': 'true' }, filled), element('span', { class: 'bar-text' }, text));
}

// planName names a plan by its value. The default plan has none.
const planName = (value) => (value === undefined ? 'default' : value === '' ? 'no plan' : `plan ${value}`);

// limitBar shows the budget of a limit, among plans with the name of its plan.
function limitBar(l, hasPlans) {
	const all = capacity(l.limit);
	const left = all === null ? `${integer.format(l.remaining)} left` : `${integer.format(l.remaining)} of ${integer.format(all)} left`;
	const used = l.used === undefined ? '' : `${integer.format(l.used)} used · `;
	const reserved = l.reserved ? `${integer.format(l.reserved)} reserved · ` : '';
	const full = l.reset_after_seconds > 0 ? ` · full again in ${formatSpan(l.reset_after_seconds)}` : '';
	return element('li', { class: 'limit' },
		element('code', {}, l.limit), hasPlans ? element('span', { class: 'badge' }, planName(l.plan)) : null,
		bar(all ? l.remaining / all : l.remaining > 0 ? 1 : 0, `${used}${reserved}${left} · ${whenFree(l.retry_after_seconds)}${full}`, l.retry_after_seconds !== 0));
}

function budgetList(b) {
	const limits = b.limits || [];
	const hasPlans = limits.some((l) => l.plan !== undefined);
	const rows = limits.map((l) => limitBar(l, hasPlans));
	if (b.concurrency) {
		const c = b.concurrency;
		rows.push(element('li', { class: 'limit' }, element('code', {}, `concurrency ${c.limit}`),
			bar(1 - c.in_use / c.limit, `${integer.format(c.in_use)} of ${integer.format(c.limit)} in flight`, c.in_use >= c.limit)));
	}
	if (b.ban && b.ban.begins) rows.push(element('li', { class: 'limit banned' }, element('strong', {}, 'A ban would begin'), ` · of ${formatSpan(b.ban.ends_after_seconds)}`));
	else if (b.ban && b.ban.banned) {
		rows.push(element('li', { class: 'limit banned' }, element('strong', {}, b.ban.shadow ? 'Banned in shadow mode' : 'Banned'), ` · ends in ${formatSpan(b.ban.ends_after_seconds)}, at ${formatInstant(Date.now() + b.ban.ends_after_seconds * 1000)}`));
	}
	return element('ul', { class: 'limits' }, ...rows);
}

function overrideText(o) {
	const limits = (o.limits || []).join(', ');
	if (o.error) return `cannot be read, and has no effect: ${o.error}`;
	if (o.from === 'config') return `${limits} · from the configuration`;
	return o.until ? `${limits} · until ${formatInstant(new Date(o.until))}` : `${limits} · no end`;
}
