// A heap of small objects with a map of some of them: random reads, a pass over all, a sort by text.
const crypto = require('crypto');
const items = [];
for (let i = 0; i < 500000; i++) {
  items.push({ id: i, name: 'item ' + i, tags: ['a' + (i % 101), 'b' + (i % 83)], at: { x: 2 * i, text: String(7 * i) } });
}
const named = new Map();
for (let i = 0; i < items.length; i += 3) named.set(items[i].name, items[i]);
const hash = crypto.createHash('sha256');
let seed = 9;
for (let i = 0; i < 80000; i++) {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  const item = items[seed % items.length];
  hash.update(item.name + item.tags[1] + item.at.text);
  item.at.x += 1;
}
let sum = 0;
for (const item of items) sum += item.at.x + item.at.text.length;
items.sort((a, b) => (a.at.text < b.at.text ? -1 : 1));
for (let i = 0; i < items.length; i += 500) hash.update(items[i].name);
console.log(sum, named.size, hash.digest('hex'));
